"""Programs that measure. Each writes its numbers to `results`, from where the documentation quotes them."""
