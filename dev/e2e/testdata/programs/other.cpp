int other_value() { return 11; }
