package audit

// WithInMemory returns opts for which members of more than n bytes are large: read in their place
// or from a temporary file.
func WithInMemory(opts Options, n int64) Options {
	opts.inMemory = n
	return opts
}
