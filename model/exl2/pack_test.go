package exl2

import (
	"fmt"
	"strings"
	"testing"
)

// The examples of the original's packing, limit 100: modules of tensor sizes, extras, shards by
// name.
func TestPackCompat(t *testing.T) {
	tests := []struct {
		modules [][]int64
		extras  []int64
		want    string
	}{
		{[][]int64{{40}, {10, 20}, {30}}, nil, "m0a m1a m1b m2a (100)"},
		{[][]int64{{60}, {40}, {50}}, nil, "m0a m1a (100) · m2a (50)"},
		{[][]int64{{60}, {30, 30}, {50, 5}, {20}}, nil, "m0a m1a (90) · m1b m2a m2b (85) · m3a (20)"},
		{[][]int64{{120}, {10}}, nil, "fatal"},
		{[][]int64{{40}, {30, 150, 5}, {20, 20}, {30}}, nil, "m0a m1a m1c (75) · m2a m2b (40) · m3a (30) · m1b (150)"},
		{
			[][]int64{{80, 80, 80}, {80, 80, 80}, {80, 80, 80}, {10}},
			nil,
			"m0a (80) · m0b (80) · m0c (80) · m1a m3a (90) · m1b m1c m2a m2b m2c (400)",
		},
		{[][]int64{{50}, {10, 300}}, nil, "m0a m1a (60) · m1b (300)"},
		{[][]int64{{60}, {30}}, []int64{70, 70, 70, 5}, "m0a m1a x3 (95) · x0 x1 x2 (210)"},
		{[][]int64{{60}, {90}}, []int64{70, 5}, "m0a (60) · m1a x1 (95) · x0 (70)"},
	}
	for _, tt := range tests {
		var names []string
		var sizes []int64
		item := func(name string, size int64) packItem {
			names, sizes = append(names, name), append(sizes, size)
			return packItem{id: len(names) - 1, size: size}
		}
		var modules [][]packItem
		var extras []packItem
		for i, m := range tt.modules {
			var items []packItem
			for j, size := range m {
				items = append(items, item(fmt.Sprintf("m%d%c", i, 'a'+j), size))
			}
			modules = append(modules, items)
		}
		for i, size := range tt.extras {
			extras = append(extras, item(fmt.Sprintf("x%d", i), size))
		}
		shards, err := packCompat(modules, extras, 100)
		got := "fatal"
		if err == nil {
			var parts []string
			for _, s := range shards {
				var words []string
				var sum int64
				for _, id := range s {
					words, sum = append(words, names[id]), sum+sizes[id]
				}
				parts = append(parts, fmt.Sprintf("%s (%d)", strings.Join(words, " "), sum))
			}
			got = strings.Join(parts, " · ")
		}
		if got != tt.want {
			t.Errorf("packCompat(%v, %v)\n got %s\nwant %s", tt.modules, tt.extras, got, tt.want)
		}
	}
}

func TestPackInOrder(t *testing.T) {
	var items []packItem
	for i, size := range []int64{40, 60, 1, 150, 150, 5, 95, 1, 0} {
		items = append(items, packItem{i, size})
	}
	got := fmt.Sprint(packInOrder(items, 100))
	if want := "[[0 1] [2] [3] [4] [5 6] [7 8]]"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}
