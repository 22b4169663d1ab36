package build

import (
	"context"
	"slices"
	"sync"

	"github.com/kiln-build/kiln/build/record"
	"github.com/kiln-build/kiln/build/sandbox"
	"github.com/kiln-build/kiln/engine"
)

// pruning removes images as soon as no further row needs them. Nil removes nothing.
type pruning struct {
	builder *Builder
	pruner  sandbox.Pruner
	images  map[string][]string // by row
	removal sync.WaitGroup

	mu   sync.Mutex
	left map[string]int // rows that are not done, by image
}

// newPruning counts the rows of each image.
func (b *Builder) newPruning(recipes map[string]*record.Recipe) *pruning {
	pruner, ok := b.Sandboxes.(sandbox.Pruner)
	if !b.Prune || !ok || b.Cluster != nil {
		return nil
	}
	p := &pruning{builder: b, pruner: pruner, images: map[string][]string{}, left: map[string]int{}}
	for id, r := range recipes {
		for _, image := range []string{r.Image, r.TestImage} {
			if image != "" && !slices.Contains(p.images[id], image) {
				p.images[id] = append(p.images[id], image)
				p.left[image]++
			}
		}
	}
	return p
}

// event follows the rows. The scheduler does not wait for a runtime that removes images.
func (p *pruning) event(ctx context.Context, e engine.Event) {
	switch e.Kind {
	case engine.EventFinished, engine.EventFailed, engine.EventSkipped, engine.EventReused:
	default:
		return
	}
	p.mu.Lock()
	var unused []string
	for _, image := range p.images[e.Job] {
		if p.left[image]--; p.left[image] == 0 {
			unused = append(unused, image)
		}
	}
	delete(p.images, e.Job)
	p.mu.Unlock()
	if len(unused) == 0 {
		return
	}
	p.removal.Go(func() {
		for _, image := range unused {
			removed, err := p.pruner.Prune(ctx, image)
			if err != nil {
				p.builder.Log.Warn("cannot remove an image", "image", image, "error", err)
			}
			for _, name := range removed {
				p.builder.Log.Info("removed an image that no further row needs", "image", name)
			}
		}
	})
}

// follow adds to a function that gets the engine's events.
func (p *pruning) follow(ctx context.Context, next func(engine.Event)) func(engine.Event) {
	if p == nil {
		return next
	}
	return func(e engine.Event) {
		p.event(ctx, e)
		if next != nil {
			next(e)
		}
	}
}

// wait returns when nothing is being removed any more.
func (p *pruning) wait() {
	if p != nil {
		p.removal.Wait()
	}
}
