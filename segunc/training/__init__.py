"""Training: the base network and the fine-tuning of a posterior."""
