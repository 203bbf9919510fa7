"""A local server over run folders: runs compared, prompts with every agent's votes and responses, live."""
