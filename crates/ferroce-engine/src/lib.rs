//! Who holds the state? The device: its tables, registered memory and progress.
