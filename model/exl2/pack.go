package exl2

import "fmt"

// packItem is a tensor as far as packing is concerned.
type packItem struct {
	id   int // the same tensor has the same id
	size int64
}

// packInOrder is the default packing: a shard ends before the tensor that would exceed the limit,
// and a tensor above the limit gets a shard of its own.
func packInOrder(items []packItem, limit int64) [][]int {
	var shards [][]int
	var cur []int
	var used int64
	for _, it := range items {
		if len(cur) > 0 && it.size > limit-used {
			shards = append(shards, cur)
			cur, used = nil, 0
		}
		cur = append(cur, it.id)
		used += it.size
	}
	if len(cur) > 0 {
		shards = append(shards, cur)
	}
	return shards
}

// tooLargeError is the case in which the original ends with status 1: a shard is due and no pending
// tensor fits into it.
type tooLargeError struct{ smallest packItem }

func (e *tooLargeError) Error() string {
	return fmt.Sprintf("no pending tensor fits into a shard; the smallest has %d bytes", e.smallest.size)
}

// packCompat is the packing of the original, with its accidents, which decide about bytes: the
// limit is looked at only after a whole module; a shard takes whatever still fits, out of order;
// extras do not count towards the limit when they are added but do when they leave; and what is
// left at the end becomes one shard of any size.
//
// An extra that is listed again after it was written is written again.
func packCompat(modules [][]packItem, extras []packItem, limit int64) ([][]int, error) {
	var (
		shards  [][]int
		pending []packItem
		waiting = map[int]bool{} // ids in pending
		counter int64
	)
	add := func(it packItem) {
		if !waiting[it.id] { // added again, it keeps its place
			waiting[it.id] = true
			pending = append(pending, it)
		}
	}
	flush := func(last bool) error {
		if counter <= limit && !last {
			return nil
		}
		var shard []int
		var used int64
		var kept []packItem
		for _, it := range pending {
			if it.size > limit-used {
				kept = append(kept, it)
				continue
			}
			shard = append(shard, it.id)
			used += it.size
			counter -= it.size
			delete(waiting, it.id)
		}
		if len(shard) == 0 {
			smallest := pending[0]
			for _, it := range pending {
				if it.size < smallest.size {
					smallest = it
				}
			}
			return &tooLargeError{smallest}
		}
		shards = append(shards, shard)
		if last && len(kept) > 0 {
			shard = nil
			for _, it := range kept {
				shard = append(shard, it.id)
			}
			shards = append(shards, shard)
			kept = nil
		}
		pending = kept
		return nil
	}

	for i, m := range modules {
		for _, it := range m {
			add(it)
			counter += it.size
		}
		if err := flush(i == len(modules)-1 && len(extras) == 0); err != nil {
			return nil, err
		}
	}
	for i, it := range extras {
		add(it)
		if err := flush(i == len(extras)-1); err != nil {
			return nil, err
		}
	}
	return shards, nil
}
