"""Read task directories of either layout into one frozen `Task`."""
