"""What agents do with a prompt before they are rewarded: answer it independently, debate it, or CoMAS."""
