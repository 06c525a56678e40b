"""How models and tokenizers get here: from the Hugging Face hub, and from GGUF files."""
