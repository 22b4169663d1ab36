package index

import (
	"context"
)

// SetFault makes f be asked before every change to a file.
func (s *Store) SetFault(f func(path string) error) { s.fault = f }

// SetBulk sets from how many pages on a change is a bulk one.
func (s *Store) SetBulk(pages int) { s.bulk = pages }

// Compact writes the log anew, whatever its size.
func (s *Store) Compact(ctx context.Context) error {
	return s.update(ctx, (*update).rewriteLog)
}
