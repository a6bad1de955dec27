//! What do two processes share? Broker messages and descriptor passing.
