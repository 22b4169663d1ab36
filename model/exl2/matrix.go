package exl2

import (
	"errors"
	"fmt"
	"slices"

	"github.com/kiln-build/kiln/model/quant"
)

// matrixSuffixes are the endings of the tensors of one quantized linear layer, in byte order.
var matrixSuffixes = quant.EXL2Suffixes()

func isMatrixSuffix(name string) bool { return slices.Contains(matrixSuffixes, name) }

// readMatrix describes the layer key, whose rules package quant knows. The description is usable
// only without problems; file is for messages.
func readMatrix(file, key string, src quant.Source) (quant.LayerInfo, Problems) {
	m := quant.InspectEXL2(src, key)
	return m, matrixProblems(file, key, m.Err)
}

// matrixProblems makes problems of what package quant says about a layer.
func matrixProblems(file, key string, err error) (ps Problems) {
	if err == nil {
		return nil
	}
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		for _, err := range joined.Unwrap() {
			ps = append(ps, matrixProblems(file, key, err)...)
		}
		return ps
	}
	var format *quant.FormatError
	if !errors.As(err, &format) {
		ps.add(BadFile, file, key, "%v", err)
		return ps
	}
	kind := map[quant.Rule]Kind{
		quant.RuleMissing: MissingTensor, quant.RuleType: BadDType, quant.RuleShape: BadShape, quant.RuleContent: BadMatrix,
	}[format.Rule]
	element := ""
	if format.Index >= 0 {
		element = fmt.Sprintf("element %d: ", format.Index)
	}
	ps.add(kind, file, format.Tensor, "%s%s", element, format.Reason)
	return ps
}

// matrixBytes is the size of all tensors of a layer.
func matrixBytes(m *quant.LayerInfo) int64 {
	if m.Bias {
		return m.Bytes + 2*int64(m.Cols)
	}
	return m.Bytes
}
