package exl2

import "github.com/kiln-build/kiln/model/safetensors"

// layout plans the file of a shard.
func (p *Plan) layout(s *Shard) (*safetensors.Layout, error) {
	specs := make([]safetensors.Spec, len(s.Tensors))
	for i, t := range s.Tensors {
		specs[i] = safetensors.Spec{Name: t.Name, DType: t.DType, Shape: t.Shape}
	}
	return safetensors.NewLayout(specs, p.Metadata)
}

// shardHeader is everything in front of the shard's data.
func (p *Plan) shardHeader(s *Shard) ([]byte, error) {
	l, err := p.layout(s)
	if err != nil {
		return nil, err
	}
	return l.Header(), nil
}

// layOut gives the tensors of a shard their order and place.
func (p *Plan) layOut(s *Shard) error {
	l, err := p.layout(s)
	if err != nil {
		return err
	}
	byName := make(map[string]Tensor, len(s.Tensors))
	for _, t := range s.Tensors {
		byName[t.Name] = t.Tensor
	}
	for i, t := range l.Tensors() {
		s.Tensors[i] = PlannedTensor{Tensor: byName[t.Name], Offset: l.DataStart() + t.Offset}
	}
	s.Size, s.HeaderSize = l.FileSize(), l.DataStart()
	return nil
}

// index is the text of the index file.
func (p *Plan) index() []byte {
	ix := safetensors.Index{TotalSize: p.TensorBytes, WeightMap: map[string]string{}}
	for _, s := range p.Shards {
		for _, t := range s.Tensors {
			ix.WeightMap[t.Name] = s.Name
		}
	}
	return ix.Encode()
}
