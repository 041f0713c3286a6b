"""What replicas of the proposer cost and gain, with everything real but the model."""
