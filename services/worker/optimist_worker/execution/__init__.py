"""What computes a step: this device, with other ranks, or as a stage of a pipeline."""
