"""Publishing what a run made: model cards and uploads to the Hugging Face Hub."""
