"""Instruments that work across architectures: compare, weigh, test and move parts of models.

Every instrument sees a checkpoint through `open_checkpoint`, whatever its format and family.
"""
