from optimist_common.channel import OPTIONS
from optimist_common.server import SERVER_OPTIONS


def test_a_server_bears_the_pings_that_our_channels_send_on_idle_streams() -> None:
    # gRPC's own limit is five minutes; whoever pings three times within it is cut off.
    least = dict(SERVER_OPTIONS)["grpc.http2.min_ping_interval_without_data_ms"]
    assert least < dict(OPTIONS)["grpc.keepalive_time_ms"]
