package quant_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/kiln-build/kiln/model/quant"
)

func TestReadBandwidth(t *testing.T) {
	if speed, err := quant.ReadBandwidth(t.Context(), 0, time.Millisecond); err != nil || speed <= 0 {
		t.Errorf("memory is read at %v bytes a second, error %v", speed, err)
	}
	cause := errors.New("enough")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(cause)
	if _, err := quant.ReadBandwidth(ctx, 1, time.Hour); !errors.Is(err, cause) {
		t.Errorf("cancelled: error %v", err)
	}
}
