"""Training pipeline for small Kimi K3 models: text to tokens to weights to a `.bin` file."""
