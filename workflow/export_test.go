package workflow

// KeyFingerprint is keyFingerprint, for its fuzzing.
func KeyFingerprint(text []byte) (string, error) { return keyFingerprint(text) }
