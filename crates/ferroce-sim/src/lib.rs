//! How do I break it on purpose? A seeded clock and network for tests.
