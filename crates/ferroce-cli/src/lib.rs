//! How do I see and steer it? The program ferroce.
