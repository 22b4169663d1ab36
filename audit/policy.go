package audit

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
)

// A policy is one manylinux level (PEP 600): which symbol versions and libraries every system
// has that calls itself so.
type policy struct {
	name      string // "manylinux_2_28"
	versions  map[string]map[string]bool
	libraries map[string]bool
	// forbidden are symbols that the libraries of some such systems lack.
	forbidden map[string]map[string]bool
}

// A policyStep is what a level adds to the one before: the versions it adds, for x86_64 and
// aarch64, and the forbidden symbols it allows again. The numbers are facts about the
// distributions each level stands for, as auditwheel 6.8 lists them.
type policyStep struct {
	minor     int
	x86, arm  string
	libraries string
	allows    string
}

var policySteps = []policyStep{
	{
		minor: 5,
		x86: "CXXABI 1.3 1.3.1 GCC 3.0 3.3 3.3.1 3.4 3.4.2 3.4.4 4.0.0 4.2.0 " +
			"GLIBC 2.2.5 2.2.6 2.3 2.3.2 2.3.3 2.3.4 2.4 2.5 GLIBCXX 3.4 3.4.1 3.4.2 3.4.3 3.4.4 3.4.5 3.4.6 3.4.7 3.4.8 " +
			"LIBATOMIC ZLIB",
		libraries: "libatomic.so.1 libgcc_s.so.1 libstdc++.so.6 libm.so.6 libanl.so.1 libdl.so.2 librt.so.1 libc.so.6 " +
			"libnsl.so.1 libutil.so.1 libpthread.so.0 libX11.so.6 libXext.so.6 libXrender.so.1 libICE.so.6 libSM.so.6 " +
			"libGL.so.1 libgobject-2.0.so.0 libgthread-2.0.so.0 libglib-2.0.so.0 libresolv.so.2 libz.so.1",
	},
	{
		minor: 12,
		x86: "CXXABI 1.3.2 1.3.3 GCC 4.3.0 GLIBC 2.6 2.7 2.8 2.9 2.10 2.11 2.12 GLIBCXX 3.4.9 3.4.10 3.4.11 3.4.12 3.4.13 " +
			"ZLIB 1.2.0 1.2.0.2 1.2.0.8 1.2.2 1.2.2.3 1.2.2.4",
		libraries: "libexpat.so.1",
	},
	{
		minor: 17,
		x86: "CXXABI 1.3.4 1.3.5 1.3.6 1.3.7 TM_1 GCC 4.7.0 4.8.0 GLIBC 2.13 2.14 2.15 2.16 2.17 " +
			"GLIBCXX 3.4.14 3.4.15 3.4.16 3.4.17 3.4.18 3.4.19 ZLIB 1.2.3.3 1.2.3.4 1.2.3.5 1.2.5.1 1.2.5.2",
		arm: "CXXABI 1.3 1.3.1 1.3.2 1.3.3 1.3.4 1.3.5 1.3.6 1.3.7 TM_1 " +
			"GCC 3.0 3.3 3.3.1 3.4 3.4.2 3.4.4 4.0.0 4.2.0 4.3.0 4.5.0 4.7.0 GLIBC 2.0 2.17 2.18 " +
			"GLIBCXX 3.4 3.4.1 3.4.2 3.4.3 3.4.4 3.4.5 3.4.6 3.4.7 3.4.8 3.4.9 3.4.10 3.4.11 3.4.12 3.4.13 3.4.14 3.4.15 3.4.16 3.4.17 3.4.18 3.4.19 " +
			"LIBATOMIC 1.0 ZLIB 1.2.0 1.2.0.2 1.2.0.8 1.2.2 1.2.2.3 1.2.2.4 1.2.3.3 1.2.3.4 1.2.3.5 1.2.5.1 1.2.5.2",
	},
	{
		minor:     24,
		x86:       "CXXABI 1.3.8 1.3.9 1.3.10 FLOAT128 GLIBC 2.18 2.22 2.23 2.24 GLIBCXX 3.4.20 3.4.21 3.4.22 LIBATOMIC 1.0 1.1 1.2",
		arm:       "CXXABI 1.3.8 1.3.9 1.3.10 GLIBC 2.22 2.23 2.24 GLIBCXX 3.4.20 3.4.21 3.4.22 LIBATOMIC 1.1 1.2",
		libraries: "libmvec.so.1",
		allows:    "libc.so.6 * libm.so.6 * libpthread.so.0 *",
	},
	{
		minor: 26,
		x86:   "GLIBC 2.25 2.26",
		arm:   "CXXABI 1.3.11 GCC 7.0.0 GLIBC 2.25 2.26 GLIBCXX 3.4.23 3.4.24",
	},
	{
		minor: 27,
		x86:   "CXXABI 1.3.11 GCC 7.0.0 GLIBC 2.27 GLIBCXX 3.4.23 3.4.24 ZLIB 1.2.7.1 1.2.9",
		arm:   "GLIBC 2.27 ZLIB 1.2.7.1 1.2.9",
	},
	{minor: 28, x86: "GLIBC 2.28", arm: "GLIBC 2.28"},
	{
		minor: 31,
		x86:   "CXXABI 1.3.12 GLIBC 2.29 2.30 2.31 GLIBCXX 3.4.25 3.4.26 3.4.27 3.4.28",
		arm:   "CXXABI 1.3.12 GLIBC 2.29 2.30 2.31 GLIBCXX 3.4.25 3.4.26 3.4.27 3.4.28",
	},
	{
		minor:  34,
		x86:    "CXXABI 1.3.13 GLIBC 2.32 2.33 2.34 GLIBCXX 3.4.29",
		arm:    "CXXABI 1.3.13 GCC 11.0 GLIBC 2.32 2.33 2.34 GLIBCXX 3.4.29",
		allows: "libz.so.1 uncompress2",
	},
	{minor: 35, x86: "GCC 12.0.0 GLIBC 2.35 GLIBCXX 3.4.30", arm: "GLIBC 2.35 GLIBCXX 3.4.30"},
	{
		minor: 36,
		x86:   "GLIBC 2.36 ABI_DT_RELR",
		arm:   "GLIBC 2.36 ABI_DT_RELR",
		allows: "libz.so.1 x86_cpu_has_sse42 static_ltree fill_window crc_fold_copy crc_fold_512to32 crc_fold_init bi_windup " +
			"x86_cpu_has_sse2 longest_match flush_pending slide_hash_sse deflate_medium x86_check_features x86_cpu_has_pclmul",
	},
	{minor: 37, x86: "ZLIB 1.2.12", arm: "ZLIB 1.2.12", allows: "libz.so.1 crc32_combine_gen crc32_combine_gen64 crc32_combine_op"},
	{minor: 38, x86: "GLIBC 2.38", arm: "GLIBC 2.38"},
	{
		minor: 39,
		x86:   "CXXABI 1.3.14 1.3.15 GCC 13.0.0 14.0.0 GLIBC 2.39 GLIBCXX 3.4.31 3.4.32 3.4.33",
		arm:   "CXXABI 1.3.14 1.3.15 GCC 13.0.0 14.0 14.0.0 GLIBC 2.39 GLIBCXX 3.4.31 3.4.32 3.4.33",
	},
	{minor: 40, x86: "GLIBC 2.40", arm: "GLIBC 2.40"},
	{minor: 41, x86: "GLIBC 2.41", arm: "GLIBC 2.41"},
}

// forbiddenAtFirst are the symbols that the oldest level forbids.
const forbiddenAtFirst = "libc.so.6 __cxa_thread_atexit_impl __issignaling __issignalingf __issignalingl pthread_getattr_default_np pthread_setattr_default_np " +
	"libm.so.6 __issignaling __issignalingf __issignalingl " +
	"libpthread.so.0 pthread_getattr_default_np pthread_setattr_default_np " +
	"libz.so.1 _dist_code _length_code _tr_align _tr_flush_block _tr_init _tr_stored_block _tr_tally adler32_default bi_windup crc32_acle " +
	"crc32_combine_gen crc32_combine_gen64 crc32_combine_op crc32_le_vgfm_16 crc32_neon crc32_vpmsum crc32_z_default crc_fold_512to32 crc_fold_copy " +
	"crc_fold_init deflate_copyright deflate_medium fill_window flush_pending gzflags inflate_copyright inflate_fast inflate_table longest_match " +
	"slide_hash_sse static_ltree uncompress2 x86_check_features x86_cpu_has_pclmul x86_cpu_has_sse2 x86_cpu_has_sse42 sse2_slide_hash z_errmsg " +
	"z_vstring zcalloc zcfree"

// policies are the levels of an architecture, oldest first; nil if kiln knows none.
func policies(arch string) []policy {
	switch arch {
	case "x86_64":
		return x86Policies()
	case "aarch64":
		return armPolicies()
	}
	return nil
}

var (
	x86Policies = sync.OnceValue(func() []policy { return buildPolicies(func(s *policyStep) string { return s.x86 }) })
	armPolicies = sync.OnceValue(func() []policy { return buildPolicies(func(s *policyStep) string { return s.arm }) })
)

func buildPolicies(versionsOf func(*policyStep) string) []policy {
	var out []policy
	versions := map[string]map[string]bool{}
	libraries := map[string]bool{}
	forbidden := map[string]map[string]bool{}
	group(forbiddenAtFirst, func(w string) bool { return strings.Contains(w, ".so.") }, forbidden)
	for i := range policySteps {
		step := &policySteps[i]
		for lib := range strings.FieldsSeq(step.libraries) {
			libraries[lib] = true
		}
		allowed := map[string]map[string]bool{}
		group(step.allows, func(w string) bool { return strings.Contains(w, ".so.") }, allowed)
		for lib, symbols := range allowed {
			if symbols["*"] {
				delete(forbidden, lib)
			}
			for symbol := range symbols {
				delete(forbidden[lib], symbol)
			}
		}
		text := versionsOf(step)
		if text == "" && len(versions) == 0 {
			continue // the architecture is younger
		}
		group(text, isNamespace, versions)
		out = append(out, policy{
			name:     fmt.Sprintf("manylinux_2_%d", step.minor),
			versions: cloneSets(versions), libraries: cloneSet(libraries), forbidden: cloneSets(forbidden),
		})
	}
	return out
}

func isNamespace(word string) bool {
	return slices.Contains([]string{"CXXABI", "GCC", "GLIBC", "GLIBCXX", "LIBATOMIC", "ZLIB"}, word)
}

// group adds words to the set of the last heading before them.
func group(text string, heading func(string) bool, to map[string]map[string]bool) {
	var set map[string]bool
	for word := range strings.FieldsSeq(text) {
		if heading(word) {
			if to[word] == nil {
				to[word] = map[string]bool{}
			}
			set = to[word]
			continue
		}
		set[word] = true
	}
}

func cloneSet(m map[string]bool) map[string]bool {
	out := make(map[string]bool, len(m))
	for k := range m {
		out[k] = true
	}
	return out
}

func cloneSets(m map[string]map[string]bool) map[string]map[string]bool {
	out := make(map[string]map[string]bool, len(m))
	for k, v := range m {
		out[k] = cloneSet(v)
	}
	return out
}

// admits says whether the level has all versions, given by namespace. Namespaces it does not
// know, such as those of CUDA's libraries, do not count.
func (p *policy) admits(required map[string][]string) (missing []string) {
	for namespace, versions := range required {
		known, ok := p.versions[namespace]
		if !ok {
			continue
		}
		for _, v := range versions {
			if !known[v] {
				missing = append(missing, namespace+"_"+v)
			}
		}
	}
	slices.Sort(missing)
	return missing
}

// isLoader says whether a needed file is the dynamic loader itself.
func isLoader(soname string) bool {
	return strings.Contains(soname, "ld-linux") || soname == "ld64.so.2" || soname == "ld64.so.1"
}

// torchLibrary says whether a library belongs to torch.
func torchLibrary(soname string) bool {
	if isDLL(soname) {
		return dllSource(soname) == fromTorch
	}
	stem, _, _ := strings.Cut(soname, ".so")
	switch stem {
	case "libc10", "libc10_cuda", "libc10_hip", "libc10_xpu", "libtorch", "libtorch_cpu", "libtorch_cuda", "libtorch_hip", "libtorch_xpu",
		"libtorch_cuda_linalg", "libtorch_python", "libtorch_global_deps", "libtorch_nvshmem", "libshm", "libcaffe2_nvrtc", "libtorch_cuda_cpp", "libtorch_cuda_cu":
		return true
	}
	return false
}

// cudaLibraries are the libraries of CUDA toolkits that come with torch or with the packages it
// depends on.
var cudaLibraries = []string{
	"libcudart", "libcublas", "libcublasLt", "libcufft", "libcufftw", "libcurand", "libcusparse", "libcusparseLt", "libcusolver", "libcusolverMg",
	"libnvrtc", "libnvrtc-builtins", "libnvJitLink", "libnvToolsExt", "libcupti", "libcufile", "libnccl", "libcudnn", "libnvshmem_host",
	"libcudnn_adv", "libcudnn_ops", "libcudnn_cnn", "libcudnn_graph", "libcudnn_adv_infer", "libcudnn_adv_train", "libcudnn_ops_infer",
	"libcudnn_ops_train", "libcudnn_cnn_infer", "libcudnn_cnn_train", "libcudnn_engines_precompiled", "libcudnn_engines_runtime_compiled",
	"libcudnn_heuristic", "libnvfatbin", "libnvjpeg", "libnppc", "libnppicc", "libnppig", "libnppial", "libnppidei", "libnppif", "libnppist", "libnpps",
}

// cudaLibrary says whether a library belongs to a CUDA toolkit.
func cudaLibrary(soname string) bool {
	stem, _, ok := strings.Cut(soname, ".so")
	return ok && slices.Contains(cudaLibraries, stem)
}

// rocmLibrary says whether a library belongs to ROCm.
func rocmLibrary(soname string) bool {
	stem, _, ok := strings.Cut(soname, ".so")
	return ok && slices.Contains([]string{
		"libamdhip64", "libhsa-runtime64", "libhiprtc", "librocblas", "libhipblas", "libhipblaslt", "libhipfft", "librocfft", "libhiprand",
		"librocrand", "libhipsparse", "librocsparse", "libhipsolver", "librocsolver", "libMIOpen", "librccl", "libroctx64", "libroctracer64",
		"libamd_comgr", "librocm_smi64", "libhipsparselt", "librocprofiler-register",
	}, stem)
}

// driverLibrary says whether a library comes with the GPU driver, and never from a package.
func driverLibrary(soname string) bool {
	stem, _, _ := strings.Cut(soname, ".so")
	return stem == "libcuda" || strings.HasPrefix(stem, "libnvidia-") || stem == "libnvcuvid"
}

// expectedOutside says whether a library that no policy promises is normal all the same in a
// torch or CUDA extension: torch, its CUDA packages or the driver bring it.
func expectedOutside(soname string) bool {
	if isDLL(soname) {
		from := dllSource(soname)
		return from == fromTorch || from == fromCUDA || from == fromDriver
	}
	return torchLibrary(soname) || cudaLibrary(soname) || rocmLibrary(soname) || driverLibrary(soname)
}

// BroughtByOthers returns the libraries that the native files of a wheel need and that torch, CUDA,
// ROCm or the driver bring: they do not belong into it.
func (r *Report) BroughtByOthers() []string {
	var out []string
	torch := false
	for _, o := range r.Objects {
		for _, lib := range o.Needed {
			torch = torch || torchLibrary(lib)
			if expectedOutside(lib) {
				out = append(out, lib)
			}
		}
	}
	for _, o := range r.Objects {
		for _, lib := range o.Needed {
			if torch && isDLL(lib) && dllSource(lib) == fromRedistributable { // torch has loaded it
				out = append(out, lib)
			}
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// A Platform says on which Linux systems a wheel runs.
type Platform struct {
	// Tag is the oldest platform tag that is true if the libraries of torch, CUDA and the
	// driver are taken for granted, as they are for an extension of torch.
	Tag string `json:"tag"`
	// Strict is the same with nothing taken for granted; it is what auditwheel reports.
	Strict string `json:"strict"`
	// Symbols is the oldest tag as far as symbol versions go.
	Symbols string `json:"symbols"`
	// Claimed are the platform tags of the file name.
	Claimed []string `json:"claimed"`
	// GLIBC, GLIBCXX, CXXABI are the highest versions that are needed, "" if none.
	GLIBC   string `json:"glibc,omitempty"`
	GLIBCXX string `json:"glibcxx,omitempty"`
	CXXABI  string `json:"cxxabi,omitempty"`
	// External are the needed libraries that no manylinux system promises and that are not
	// in the wheel, sorted.
	External []string `json:"external,omitempty"`
	// Foreign are those of External that neither torch, CUDA, ROCm nor the driver brings.
	Foreign []string `json:"foreign,omitempty"`
}

// requirements collects what the objects of a wheel need from a system.
type requirements struct {
	arch     string
	versions map[string][]string // by namespace, each version once
	// needed has, for each library outside of the wheel, an object that needs it.
	needed map[string]string
	// undefined has the strong undefined symbols of the objects that need a library.
	undefined map[string]map[string]bool
	level     int // of x86-64
}

func newRequirements() *requirements {
	return &requirements{versions: map[string][]string{}, needed: map[string]string{}, undefined: map[string]map[string]bool{}}
}

func (r *requirements) addVersions(needs []versionNeed) {
	for _, n := range needs {
		if strings.HasPrefix(n.file, "ld-linux") || n.file == "ld64.so.2" || n.file == "ld64.so.1" {
			continue
		}
		namespace, version, ok := strings.Cut(n.version, "_")
		if !ok {
			continue
		}
		if !slices.Contains(r.versions[namespace], version) {
			r.versions[namespace] = append(r.versions[namespace], version)
		}
	}
}

// highest is the largest version of a namespace, by number.
func (r *requirements) highest(namespace string) string {
	best := ""
	for _, v := range r.versions[namespace] {
		if v != "" && v[0] >= '0' && v[0] <= '9' && (best == "" || compareDotted(v, best) > 0) {
			best = v
		}
	}
	return best
}

// compareDotted compares version numbers such as 2.9 and 2.17.
func compareDotted(a, b string) int {
	as, bs := strings.Split(a, "."), strings.Split(b, ".")
	for i := range max(len(as), len(bs)) {
		x, y := 0, 0
		if i < len(as) {
			x, _ = strconv.Atoi(as[i])
		}
		if i < len(bs) {
			y, _ = strconv.Atoi(bs[i])
		}
		if x != y {
			return max(min(x-y, 1), -1)
		}
	}
	return 0
}

// symbolPolicy is the index of the oldest level whose versions suffice, -1 if none.
func (r *requirements) symbolPolicy(list []policy) int {
	return slices.IndexFunc(list, func(p policy) bool { return len(p.admits(r.versions)) == 0 })
}

// libraryPolicy is the index of the oldest level that has all needed libraries but those that
// may lie outside, -1 if none.
func (r *requirements) libraryPolicy(list []policy, outside func(string) bool) int {
	return slices.IndexFunc(list, func(p policy) bool {
		for lib := range r.needed {
			if !p.libraries[lib] && !outside(lib) {
				return false
			}
		}
		return true
	})
}

// forbiddenPolicy is the index of the oldest level that forbids no symbol in use, -1 if none.
func (r *requirements) forbiddenPolicy(list []policy) int {
	return slices.IndexFunc(list, func(p policy) bool {
		for lib, symbols := range p.forbidden {
			for symbol := range r.undefined[lib] {
				if symbols[symbol] {
					return false
				}
			}
		}
		return true
	})
}

// muslTag is the tag of a wheel for musl. Its symbols have no versions, so that the file does not say
// more than that; 1.2 is what every system has that is still maintained.
const muslTag = "musllinux_1_2_"

func muslLibrary(soname string) bool { return strings.HasPrefix(soname, "libc.musl-") }

// musl says whether the C library is musl, which is proven by its name.
func (r *requirements) musl() bool {
	for lib := range r.needed {
		if muslLibrary(lib) {
			return true
		}
	}
	return false
}

// muslPlatform judges the requirements of a wheel for musl: such a system promises nothing else.
func (r *requirements) muslPlatform(p Platform) Platform {
	for lib := range r.needed {
		if !muslLibrary(lib) {
			p.External = append(p.External, lib)
		}
	}
	slices.Sort(p.External)
	p.Foreign = slices.DeleteFunc(slices.Clone(p.External), expectedOutside)
	if p.GLIBC != "" || r.level > 1 {
		return p // parts of it are for glibc, or for newer processors
	}
	p.Symbols = muslTag + r.arch
	if len(p.Foreign) == 0 {
		p.Tag = p.Symbols
	}
	if len(p.External) == 0 {
		p.Strict = p.Symbols
	}
	return p
}

// platform judges the requirements.
func (r *requirements) platform() Platform {
	plain := "linux_" + r.arch
	list := policies(r.arch)
	p := Platform{
		Tag: plain, Strict: plain, Symbols: plain,
		GLIBC: r.highest("GLIBC"), GLIBCXX: r.highest("GLIBCXX"), CXXABI: r.highest("CXXABI"),
	}
	if r.musl() {
		return r.muslPlatform(p)
	}
	newest := policy{}
	if len(list) > 0 {
		newest = list[len(list)-1]
	}
	for lib := range r.needed {
		if !newest.libraries[lib] {
			p.External = append(p.External, lib)
		}
	}
	slices.Sort(p.External)
	p.Foreign = slices.DeleteFunc(slices.Clone(p.External), expectedOutside)
	symbols, forbidden := r.symbolPolicy(list), r.forbiddenPolicy(list)
	name := func(levels ...int) string {
		best := 0
		for _, level := range levels {
			if level < 0 {
				return plain
			}
			best = max(best, level)
		}
		if len(list) == 0 {
			return plain
		}
		return list[best].name + "_" + r.arch
	}
	p.Symbols = name(symbols)
	isa := 0
	if r.level > 1 {
		isa = -1
	}
	p.Tag = name(symbols, forbidden, isa, r.libraryPolicy(list, expectedOutside))
	p.Strict = name(symbols, forbidden, isa, r.libraryPolicy(list, func(string) bool { return false }))
	return p
}
