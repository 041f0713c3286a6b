"""What every service that speaks `optimist.scheduler.v1` does with the streams of gateways."""
