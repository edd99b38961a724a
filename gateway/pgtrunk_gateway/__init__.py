"""The pgtrunk gateway: sessions from QUIC, TCP and unix sockets, pooled onto few backends."""
