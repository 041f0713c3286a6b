"""`optimist.scheduler.v1` over vLLM: a scheduler with its workers inside."""
