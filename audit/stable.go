package audit

import (
	"debug/dwarf"
	"debug/elf"
	"fmt"
	"io"
	"path"
	"slices"
	"strings"
)

// replacements is what the stable ABI has in place of names, by how they begin, the longest first.
// The text is for people: a name to use and the header it is in.
var replacements = []struct{ prefix, use string }{
	{"c10::detail::torchCheckFail", "STD_TORCH_CHECK of torch/headeronly/util/Exception.h"},
	{"c10::detail::torchInternalAssertFail", "STD_TORCH_CHECK of torch/headeronly/util/Exception.h"},
	{"c10::Error", "STD_TORCH_CHECK of torch/headeronly/util/Exception.h, which throws std::runtime_error"},
	{"c10::Warning", "a message of your own: the stable ABI has no warnings"},
	{"c10::cuda::c10_cuda_check_implementation", "STD_CUDA_CHECK of torch/csrc/stable/macros.h (2.10)"},
	{"c10::cuda::getCurrentCUDAStream", "aoti_torch_get_current_cuda_stream, or torch::stable::accelerator::getCurrentStream"},
	{"c10::cuda::getStreamFromPool", "torch_get_cuda_stream_from_pool (2.10)"},
	{"c10::cuda::setCurrentCUDAStream", "torch_set_current_cuda_stream (2.10)"},
	{"c10::cuda::", "torch::stable::accelerator::DeviceGuard and its neighbors in torch/csrc/stable/accelerator.h"},
	{"c10::impl::", "torch::stable::accelerator::DeviceGuard of torch/csrc/stable/accelerator.h"},
	{"at::cuda::getCurrentCUDABlasHandle", "torch_get_current_cuda_blas_handle (2.10)"},
	{"at::cuda::", "the CUDA runtime itself, or torch/csrc/stable/accelerator.h"},
	{"at::internal::", "torch::stable::parallel_for of torch/csrc/stable/ops.h (2.10)"},
	{"at::get_num_threads", "torch::stable::get_num_threads of torch/csrc/stable/ops.h (2.10)"},
	{"at::get_thread_num", "torch_get_thread_idx (2.10)"},
	{"at::_ops::", "the function of that name in torch/csrc/stable/ops.h, or torch_call_dispatcher with the operator's name"},
	{"at::", "torch::stable::Tensor of torch/csrc/stable/tensor.h"},
	{"c10::toString", "a switch over torch::headeronly::ScalarType"},
	{"c10::ScalarType", "torch::headeronly::ScalarType"},
	{"c10::TensorImpl", "torch::stable::Tensor of torch/csrc/stable/tensor.h"},
	{"c10::UndefinedTensorImpl", "torch::stable::Tensor of torch/csrc/stable/tensor.h"},
	{"c10::StorageImpl", "torch::stable::Tensor::mutable_data_ptr"},
	{"c10::SymInt", "int64_t: torch::stable::Tensor has plain sizes"},
	{"c10::IValue", "StableIValue of torch/csrc/stable/stableivalue_conversions.h"},
	{"c10::Dispatcher", "torch_call_dispatcher (2.10)"},
	{"torch::Library", "STABLE_TORCH_LIBRARY of torch/csrc/stable/library.h"},
	{"torch::detail::TorchLibraryInit", "STABLE_TORCH_LIBRARY of torch/csrc/stable/library.h"},
	{"torch::CppFunction", "TORCH_BOX of torch/csrc/stable/library.h"},
	{"torch::jit::", "registration by STABLE_TORCH_LIBRARY, without TorchScript's classes"},
	{"torch::autograd::", "torch.library.register_autograd in Python"},
	{"THPVariable_", "registration by STABLE_TORCH_LIBRARY in place of pybind11, and torch.ops in Python"},
	{"THP", "registration by STABLE_TORCH_LIBRARY in place of pybind11, and torch.ops in Python"},
}

// A StableAdvice is a name that keeps a wheel off the stable ABI.
type StableAdvice struct {
	// Symbol and Name are the name as the linker has it and as people write it.
	Symbol string `json:"symbol"`
	Name   string `json:"name"`
	// Places are where it is called, as file:line, as far as debug information tells.
	Places []string `json:"places,omitempty"`
	// Use is what the stable ABI has in its place; "" if nothing is known.
	Use string `json:"use,omitempty"`
}

// Advice says of every unstable name what to do about it.
func (t *TorchABI) Advice() []StableAdvice {
	var out []StableAdvice
	for _, symbol := range t.Unstable {
		a := StableAdvice{Symbol: symbol, Name: shortName(symbol), Places: t.places[symbol]}
		// Vtables and type information are named after the class.
		plain := a.Name[strings.LastIndex(a.Name, " for ")+1:]
		plain = strings.TrimPrefix(plain, "for ")
		best := 0
		for _, r := range replacements {
			if strings.HasPrefix(plain, r.prefix) && len(r.prefix) > best {
				best, a.Use = len(r.prefix), r.use
			}
		}
		out = append(out, a)
	}
	return out
}

const (
	maxDebugSize = 512 << 20 // of one file; reading takes a few times as much memory
	maxPlaces    = 5         // of one name
)

// The GNU forms that compilers wrote before DWARF 5.
const (
	tagGNUCallSite = dwarf.Tag(0x4109)
	tagCallSite    = dwarf.Tag(0x48)
)

// callSites are the places that call functions of other files, by the function's name for the
// linker, from the debug information of an ELF file. It gives what it finds: a file without debug
// information, or with damage in it, gives less.
func callSites(r io.ReaderAt, wanted func(string) bool) map[string][]string {
	f, err := elf.NewFile(r)
	if err != nil {
		return nil
	}
	var size uint64
	for _, s := range f.Sections {
		if strings.HasPrefix(s.Name, ".debug_") || strings.HasPrefix(s.Name, ".zdebug_") {
			size += s.Size
		}
	}
	if size == 0 || size > maxDebugSize {
		return nil
	}
	data, err := f.DWARF()
	if err != nil {
		return nil
	}
	out := map[string][]string{}
	entries := data.Reader()
	for {
		unit, err := entries.Next()
		if err != nil || unit == nil {
			return out
		}
		if unit.Tag != dwarf.TagCompileUnit {
			entries.SkipChildren()
			continue
		}
		callSitesOfUnit(data, entries, unit, wanted, out)
	}
}

// callSitesOfUnit reads the children of a unit.
//
// A call in an inlined function counts where the outermost of them is called: that is the line in
// the source of the extension, and not in a header of torch.
func callSitesOfUnit(data *dwarf.Data, entries *dwarf.Reader, unit *dwarf.Entry, wanted func(string) bool, out map[string][]string) {
	if !unit.Children {
		return
	}
	names := map[dwarf.Offset]string{}
	type call struct {
		to   dwarf.Offset
		pc   uint64
		from *dwarf.Entry // the outermost function that was inlined around it, or nil
	}
	var calls []call
	var around []*dwarf.Entry
	for entry := unit; ; {
		if entry.Children {
			around = append(around, entry)
		}
		var err error
		for {
			if entry, err = entries.Next(); err != nil || entry == nil {
				around = nil
				break
			}
			if entry.Tag != 0 {
				break
			}
			if around = around[:len(around)-1]; len(around) == 0 {
				break
			}
		}
		if len(around) == 0 {
			break
		}
		switch entry.Tag {
		case dwarf.TagSubprogram:
			if name, ok := entry.Val(dwarf.AttrLinkageName).(string); ok && wanted(name) {
				names[entry.Offset] = name
			}
		case tagCallSite, tagGNUCallSite:
			to, ok := entry.Val(dwarf.AttrCallOrigin).(dwarf.Offset)
			if !ok {
				to, ok = entry.Val(dwarf.AttrAbstractOrigin).(dwarf.Offset)
			}
			pc, okPC := entry.Val(dwarf.AttrCallReturnPC).(uint64)
			if !okPC {
				pc, okPC = entry.Val(dwarf.AttrLowpc).(uint64)
			}
			if ok && okPC {
				c := call{to: to, pc: pc}
				if i := slices.IndexFunc(around, func(e *dwarf.Entry) bool { return e.Tag == dwarf.TagInlinedSubroutine }); i >= 0 {
					c.from = around[i]
				}
				calls = append(calls, c)
			}
		}
	}
	calls = slices.DeleteFunc(calls, func(c call) bool { return names[c.to] == "" })
	if len(calls) == 0 {
		return
	}
	lines, err := data.LineReader(unit)
	if err != nil || lines == nil {
		return
	}
	for _, c := range calls {
		name := names[c.to]
		if len(out[name]) >= maxPlaces {
			continue
		}
		var place string
		var line dwarf.LineEntry
		if c.from != nil {
			file, _ := c.from.Val(dwarf.AttrCallFile).(int64)
			number, _ := c.from.Val(dwarf.AttrCallLine).(int64)
			if files := lines.Files(); file > 0 && file < int64(len(files)) && files[file] != nil {
				place = fmt.Sprintf("%s:%d", shortPath(files[file].Name), number)
			}
		} else if lines.SeekPC(c.pc-1, &line) == nil && line.File != nil {
			place = fmt.Sprintf("%s:%d", shortPath(line.File.Name), line.Line)
		}
		if place != "" && !slices.Contains(out[name], place) {
			out[name] = append(out[name], place)
		}
	}
}

// shortPath is the end of a path that tells files apart: machines that build have long ones.
func shortPath(name string) string {
	parts := strings.Split(path.Clean(strings.ReplaceAll(name, `\`, "/")), "/")
	return strings.Join(parts[max(0, len(parts)-3):], "/")
}
