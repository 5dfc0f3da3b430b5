"""Tests of the training pipeline."""
