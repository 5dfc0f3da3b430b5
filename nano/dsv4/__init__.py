"""The second architecture: DeepSeek-V4 in PyTorch, trainable, and the oracle of the engine."""
