package machine

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/kiln-build/kiln/compat"
	"github.com/kiln-build/kiln/internal/units"
	"github.com/kiln-build/kiln/wheel"
)

// table is everything that Diagnose knows, in order of precedence: first what the
// kernel says (memory, time, disk), then what the tools say, generic entries last.
// It is built on first use: programs that diagnose nothing do not pay for it.
var table = sync.OnceValue(func() []entry {
	return slices.Concat(resourceEntries(), networkEntries(), dependencyEntries(), toolEntries(), importEntries(),
		deviceEntries(), outputEntries(), windowsEntries(), genericEntries())
})

// compilerNoise are the entries that any compiler's death explains.
var compilerNoise = []string{"compile-error", "link-error", "compiler-crash", "header-missing", "no-distribution", "dependency-not-found", "network"}

func resourceEntries() []entry {
	return []entry{
		{
			id: "worker-lost", title: "The worker was lost during the build", modes: []int{8}, class: ClassLost,
			cause: "The worker stopped reporting: the machine was restarted or preempted, or lost its network. If memory was near its limit, the diagnosis is oom instead.",
			facts: func(e *Evidence) bool { return e.Lost && !nearLimit(e) },
			text: []pattern{
				text("lost communication", `(?P<runner>(?:hosted|self-hosted) runner\b.*) lost communication with the server`),
				text("shutdown signal", `(?P<shutdown>runner has received a shutdown signal)`),
				text("Connection to the runner", `Connection to the runner was lost`),
			},
			say: func(f *finding) (string, string) {
				switch {
				case f.get("runner", "") != "" || len(f.lines) > 0 && f.get("shutdown", "") == "":
					return "The runner of the CI host stopped answering. On hosted runners that is nearly always a build that took all memory: the runner itself is starved or killed, and no message of the compiler is left.",
						ways("let the row compile with less: resources: {jobs: 1} in packages.yml, and nvcc_threads: 1", "give the runner swap: the workflow that kiln generates adds it",
							"or build it on a larger or self-hosted runner (workflow: {runners: …})")
				case f.get("shutdown", "") != "":
					return "The CI host ended the runner: the job was canceled, a spot machine was taken back, or the machine was shut down.", "run the job again: rows that are done are not built again"
				}
				return "The worker stopped reporting" + peakText(f.e) + ".",
					"the row is tried again elsewhere and keeps what it had compiled; nothing to do unless it happens again"
			},
			hides: compilerNoise,
		},
		{
			id: "oom", title: "Out of memory", modes: []int{8}, class: ClassMemory,
			cause: "Compilers of device code need gigabytes each; the kernel killed one of them. Peak memory is jobs × nvcc threads × memory of one compile.",
			text: []pattern{
				plain("Killed signal terminated program"),
				text("Killed", `^(?:\S+: (?:line )?\d+:\s+(?:\d+ )?)?Killed(?:\s{2,}.*|\s+\S*(?:nvcc|g\+\+|gcc|cc1plus|cicc|ptxas|ninja|python)\S*(?:\s.*)?)?$`),
				text("signal 9", `died due to signal 9`),
				text("signal: 9", `signal: 9, SIGKILL`),
				plain("virtual memory exhausted"),
				text("out of memory allocating", `(?:cc1plus|cc1|as|ld|lto1|g\+\+|gcc)?:? ?out of memory allocating \d+ bytes`),
				text("emory", `(?:ptxas|cicc|nvlink|cudafe\+\+|fatbinary|ld|collect2)\b.*(?i:out of memory|memory exhausted|cannot allocate memory)`),
				text("LLVM ERROR", `LLVM ERROR: out of memory`),
				text("bad_alloc", `terminate called after throwing an instance of 'std::bad_alloc'`),
				plain("Cannot allocate memory"),
				text("Out of memory", `Out of memory: Killed process \d+ \((?P<program>[^)]+)\)`),
				text("oom", `oom-kill(?:er)?[:, ]`),
				text("C1060", `C1060|C1076`),
				text("MemoryError", `^\s*MemoryError\b`),
			},
			facts: func(e *Evidence) bool {
				return e.OOMKilled || e.Lost && nearLimit(e) || !e.TimedOut && nearLimit(e) && (e.ExitCode == 137 || e.Signal == "SIGKILL") ||
					!e.TimedOut && (e.ExitCode == 137 || e.Signal == "SIGKILL")
			},
			confirm: func(f *finding) Confidence {
				switch {
				case f.e.OOMKilled:
					return Certain
				case f.e.TimedOut && len(f.lines) == 0:
					return ""
				case f.e.TimedOut && onlyKilled(f.lines):
					return "" // kiln killed it
				case nearLimit(f.e):
					return Certain
				case f.e.MemoryLimitBytes > 0 && f.e.PeakMemoryBytes > 0 && f.e.PeakMemoryBytes < f.e.MemoryLimitBytes/4 && len(f.lines) == 0:
					return Possible // or a kill -9 by hand
				case len(f.lines) == 0 && !nearLimit(f.e):
					return Possible
				}
				return Likely
			},
			say: func(f *finding) (string, string) {
				e := f.e
				detail := "A program ran out of memory"
				if p := f.get("program", ""); p != "" {
					detail = p + " was killed for memory"
				}
				detail += peakText(e)
				if e.Jobs > 0 {
					detail += fmt.Sprintf(", with %d jobs", e.Jobs)
					if e.NVCCThreads > 1 {
						detail += fmt.Sprintf(" of %d nvcc threads", e.NVCCThreads)
					}
				}
				if tu := lastSource(e.LogLines); tu != "" {
					detail += "; it was at work on " + tu
				}
				fix := "compile with fewer jobs at a time: MAX_JOBS=1 and NVCC_THREADS=1 need the least memory"
				if e.Jobs > 1 || e.NVCCThreads > 1 {
					fix = fmt.Sprintf("compile with fewer jobs at a time: MAX_JOBS=%d NVCC_THREADS=1", max(1, e.Jobs/2))
				} else if e.Jobs == 1 {
					fix = "give the build more memory: it was already compiling one file at a time"
				}
				if e.ExitCode == 137 && !e.OOMKilled && len(f.lines) == 0 && !nearLimit(e) {
					return "The command was killed (exit code 137), and its own memory limit did not do it" + peakText(e) +
							". Either the machine as a whole ran out of memory, or the container was ended from outside.",
						ways(fix, "`dmesg | grep -i oom` on the machine says whether the kernel killed it", "on a hosted runner: add swap, or build one row per job")
				}
				return detail + ".", ways(fix, "or raise the memory limit of the build", "or build fewer archs: each is compiled on its own")
			},
			hides: compilerNoise,
		},
		{
			id: "time-limit", title: "The time limit was reached", modes: []int{9}, class: ClassTime,
			cause:  "kiln stopped the build at its limit, before the host would have. What was compiled is kept.",
			facts:  func(e *Evidence) bool { return e.TimedOut },
			text:   []pattern{text("exceeded the maximum execution time", `exceeded the maximum execution time of`), text("DUE TO TIME LIMIT", `CANCELLED AT .* DUE TO TIME LIMIT`)},
			stages: []string{StagePrepare, StagePreflight, StageCompile, StageAudit, StageTest, StageCollect},
			say: func(f *finding) (string, string) {
				limit := "its time limit"
				if f.e.WallLimit > 0 {
					limit = "its limit of " + f.e.WallLimit.String()
				}
				if f.e.Stage == StageTest {
					return "The test was stopped at " + limit + ". A test that compiles at import, waits for a GPU or for the network takes this long.",
						"raise the test's timeout, or find out what it waits for"
				}
				return "The build was stopped at " + limit + ". The next attempt goes on from what is compiled.",
					ways("run it again: it resumes", "or raise the row's wall time", "or build fewer archs, or with more jobs if memory allows")
			},
			hides: append([]string{"test-failed", "python-error"}, compilerNoise...),
		},
		{
			id: "disk-full", title: "No space left on the disk", modes: []int{10}, class: ClassDisk,
			cause: "Devel images are about 5 GB, torch with its libraries 6 GB unpacked, objects with many archs up to 70 MB each.",
			text: []pattern{
				text("No space left on device", `(?P<runner>.*(?:/home/runner/|/actions-runner/|Runner\.Worker|##\[error\]).*No space left on device.*)`),
				text("No space left on device", `No space left on device.*(?P<runner>/home/runner/|/actions-runner/)`),
				text("No space left on device", `(?:(?P<file>[^\s:'"]+): )?.*No space left on device`),
				text("running out of disk space", `(?P<runner>You are running out of disk space)`),
				plain("Disk quota exceeded"), plain("There is not enough space on the disk"), plain("no space left on device"),
			},
			confirm: func(f *finding) Confidence {
				if f.e.FreeDiskBytes > 0 && f.e.FreeDiskBytes < 1<<30 {
					return Certain
				}
				return Likely
			},
			facts: func(e *Evidence) bool {
				return e.failed() && e.FreeDiskBytes > 0 && e.FreeDiskBytes < 16<<20 || e.Stage == StagePreflight && e.NeedDiskBytes > 0 && e.FreeDiskBytes > 0 && e.FreeDiskBytes < e.NeedDiskBytes
			},
			say: func(f *finding) (string, string) {
				d := "A file could not be written: the file system is full"
				if f.e.FreeDiskBytes > 0 {
					d = "The file system of the build has " + units.Bytes(f.e.FreeDiskBytes) + " left"
				}
				if f.e.NeedDiskBytes > 0 {
					d += "; the row needs " + units.Bytes(f.e.NeedDiskBytes)
				}
				if f.get("runner", "") != "" {
					return d + ". A hosted runner has 14 GB for a job as it comes.", ways("run `kiln workflow free-disk` as the first step: the workflow that kiln generates does",
						"kiln build --prune removes every image as soon as no further row needs it", "or build fewer rows in one job")
				}
				if f.e.OS == "windows" {
					return d + ".", ways("free some space: cleanmgr, or Settings, System, Storage, shows what is large", "or put the work folder on a larger drive: --state D:\\k, and TEMP and TMP with it")
				}
				return d + ".", ways("free some space: `du -xh --max-depth=2 . | sort -h | tail` shows what is large", "or put TMPDIR and the work folder on a larger file system",
					"inside a small tmpfs, such as /tmp of many containers, give it more with --tmpfs or a mount")
			},
			hides: append([]string{"file-access"}, compilerNoise...),
		},
		{
			id: "file-access", title: "A file cannot be read or written", class: ClassFault,
			cause: "The folder belongs to another user, or is mounted read-only.",
			text: []pattern{
				text("Permission denied", `(?P<what>(?:PermissionError|OSError): \[Errno 13\].*)`),
				text("Read-only file system", `(?P<what>.*Read-only file system.*)`),
				text("Permission denied", `(?P<what>(?:cannot|can't|could not|unable to|error:|fatal:|mkdir:|cp:|ld:|as:).*Permission denied.*)`),
			},
			say: func(f *finding) (string, string) {
				return "The system refused access" + colon(f.get("what", "")) + ".", ways("give the folder to the user who builds", "a package that writes beside its sources has to be built from a copy; a home folder that is read-only needs HOME set")
			},
			hides: []string{"python-error", "compile-error"},
		},
		{
			id: "limits", title: "A limit of the system was reached", modes: []int{36}, class: ClassFault,
			cause: "Too many open files or processes, or a command line that is too long.",
			text: []pattern{
				text("Argument list too long", `(?P<what>Argument list too long)`), text("Too many open files", `(?P<what>Too many open files)`),
				text("Resource temporarily unavailable", `(?:fork|vfork|clone|pthread_create|posix_spawn)\S*:? .*(?P<what>Resource temporarily unavailable)`),
				text("File name too long", `(?P<what>File name too long)`), text("can't start new thread", `(?P<what>can't start new thread)`),
			},
			say: func(f *finding) (string, string) {
				switch what := f.get("what", ""); what {
				case "Argument list too long":
					return "A command line is longer than the system allows, usually that of the linker with all its objects.", "build in a folder with a shorter path, or make the package pass objects in a response file (@file)"
				case "File name too long":
					return "A path is longer than the system allows.", "build in a folder with a shorter path"
				case "":
					return "A limit of the system was reached.", ways("raise the limit: ulimit -n 65536, --pids-limit", "or build with fewer jobs")
				default:
					return "A limit of the system was reached: " + what + ".", ways("raise the limit of open files (ulimit -n 65536) or of processes (ulimit -u, --pids-limit of the container)", "or build with fewer jobs")
				}
			},
			hides: compilerNoise,
		},
	}
}

// nearLimit says whether memory use came within a tenth of its limit.
func nearLimit(e *Evidence) bool {
	return e.MemoryLimitBytes > 0 && e.PeakMemoryBytes >= e.MemoryLimitBytes/10*9
}

// onlyKilled says whether the lines tell of a SIGKILL and of nothing else.
func onlyKilled(lines []string) bool {
	return !slices.ContainsFunc(lines, func(l string) bool { return !strings.Contains(l, "Killed") && !strings.Contains(l, "signal") })
}

// peakText is what was used of how much memory.
func peakText(e *Evidence) string {
	switch {
	case e.PeakMemoryBytes > 0 && e.MemoryLimitBytes > 0:
		return fmt.Sprintf(": peak %s of a limit of %s", units.Bytes(e.PeakMemoryBytes), units.Bytes(e.MemoryLimitBytes))
	case e.PeakMemoryBytes > 0:
		return ": peak " + units.Bytes(e.PeakMemoryBytes)
	case e.MemoryLimitBytes > 0:
		return ": the limit is " + units.Bytes(e.MemoryLimitBytes)
	}
	return ""
}

// lastSource finds the source file of the last failed compile command in a log.
func lastSource(lines []string) string {
	for _, line := range slices.Backward(lines) {
		if !strings.Contains(line, "FAILED:") && !strings.Contains(line, " -c ") {
			continue
		}
		for word := range strings.FieldsSeq(line) {
			for _, ext := range []string{".cu", ".cpp", ".cc", ".cxx", ".c", ".hip"} {
				if strings.HasSuffix(word, ext) {
					return word[strings.LastIndexAny(word, `/\`)+1:]
				}
			}
		}
	}
	return ""
}

func colon(s string) string {
	if s == "" {
		return ""
	}
	return ": " + strings.TrimRight(s, ". ")
}

func networkEntries() []entry {
	return []entry{
		{
			id: "download-in-build", title: "The build downloads instead of compiling", modes: []int{23}, class: ClassFault, stages: []string{StageCompile},
			cause: "Some packages download a wheel from their release page and use it as the result of the build. kiln compiles without network, so that the download fails.",
			text: []pattern{
				text("Guessing wheel URL", `Guessing wheel URL:\s+(?P<url>\S+)`), plain("Precompiled wheel not found"),
				text("urlopen error", `<urlopen error (?P<why>[^>]*)>`), text("Failed to establish a new connection", `Failed to establish a new connection`),
				text("resolve", `(?:Could not|Temporary failure in name) resol(?:ve host|ution)`), plain("Network is unreachable"),
			},
			confirm: func(f *finding) Confidence {
				if f.e.NetworkOff {
					return Certain
				}
				if f.groups["url"] != "" {
					return Likely
				}
				return "" // with network, this is a network failure
			},
			say: func(f *finding) (string, string) {
				d := "The package's build step opened a network connection, and builds run without network"
				if u := f.get("url", ""); u != "" {
					d = "The package's build step looked for a ready wheel at " + u
				}
				return d + ".", ways(forceBuild(f.e.LogLines), "name what the build needs in its requirements or its source: they are fetched and pinned first")
			},
			hides: []string{"network", "python-error", "access-denied"},
		},
		{
			id: "proxy-changes", title: "A proxy changes what is downloaded", class: ClassFault,
			cause: "Between this machine and the server is a proxy that opens encrypted connections with a certificate of its own, or answers with a page of its own in place of the file.",
			text: []pattern{
				text("ertificate", `(?P<cert>self[- ]signed certificate(?: in certificate chain)?|unable to get local issuer certificate|certificate signed by unknown authority|invalid peer certificate: UnknownIssuer)`),
				text("<html", `(?i)(?:expected|not a zip|invalid|unexpected|bad).*(?P<page><!doctype html|<html)`), text("<!DOCTYPE", `(?i)(?:expected|not a zip|invalid|unexpected|bad|sha256).*(?P<page><!doctype html)`),
				text("roxy", `(?P<page>(?i:blocked by .*proxy|proxy authentication required|zscaler|blue ?coat|fortigate|access to this site is blocked).*)`),
				text("located at", `(?P<page>Wheel '\S+' located at \S+ is invalid)`), text("not a zip file", `(?P<page>BadZipFile: File is not a zip file)`),
			},
			stages: []string{StageFetch, StagePrepare, StageTest},
			say: func(f *finding) (string, string) {
				if cert := f.get("cert", ""); cert != "" {
					return "The certificate that arrived is not one that this machine trusts (" + cert + "): a proxy puts its own in place of the server's.",
						ways("set SSL_CERT_FILE to the certificates of your network, in PEM, before kiln: builds and containers get it", "or ask for the addresses of the index to be left alone by the proxy")
				}
				return "What arrived is not the file but something that a proxy or filter put in its place.", ways("ask for the addresses of the index to be left alone by the proxy, or use a mirror inside the network (--index-url)",
					"credentials of a proxy belong into HTTPS_PROXY", "remove what was kept of it: .kiln/cache/pip")
			},
			hides: []string{"network", "no-distribution", "dependency-not-found", "python-error", "access-denied", "damaged-module"},
		},
		{
			id: "hash-mismatch", title: "A downloaded file is not the one that was pinned", modes: []int{35}, class: ClassNetwork,
			cause: "The download was damaged, or the file of that name was replaced, as happens with nightly builds of torch.",
			text: []pattern{
				plain("DO NOT MATCH THE HASHES"), text("ash mismatch", `(?i)hash mismatch(?: for (?P<file>\S+))?`), text("sha256 mismatch", `sha256 mismatch`),
				text("Expected sha", `Expected (?:sha256|md5|sha512) (?P<want>[0-9a-f]+)`), text("Got ", `Got\s+(?P<got>[0-9a-f]{32,})`),
			},
			confirm: func(f *finding) Confidence {
				if len(f.lines) == 1 && strings.HasPrefix(f.lines[0], "Got") {
					return ""
				}
				return Likely
			},
			classOf: func(f *finding) Class {
				if nightly(f.e) {
					return ClassFault // it will not change back
				}
				return ClassNetwork
			},
			say: func(f *finding) (string, string) {
				d := "The bytes that arrived have another hash than the lock says"
				if f.get("want", "") != "" && f.get("got", "") != "" {
					d += fmt.Sprintf(": %s… instead of %s…", head(f.get("got", ""), 12), head(f.get("want", ""), 12))
				}
				if nightly(f.e) {
					return d + ". This is a nightly build: the file behind its name was replaced.", "pin the new build, and rebuild every row that used the old one"
				}
				return d + ".", ways("kiln downloads it again; if the bytes are the same, the file was replaced, or a proxy changes it", "then find out why before you pin the new hash")
			},
			hides: []string{"no-distribution", "dependency-not-found", "python-error"},
		},
		{
			id: "container-runtime", title: "The container runtime does not work", modes: []int{11}, class: ClassFault,
			cause: "podman or docker is installed, and cannot start a container here: its service does not run, or the kernel, the control groups or the rights of this user do not allow it.",
			text: []pattern{
				text("cgroups in hybrid mode", `(?P<hybrid>cgroups in hybrid mode)`),
				text("onnect to the", `(?i)(?P<down>cannot connect to the docker daemon|failed to connect to the docker api)`), text("onnect to", `(?i)(?P<podman>(?:cannot|unable to) connect to podman)`),
				text("OCI runtime", `OCI runtime (?:create failed|error|attempted to invoke)`), text("crun: ", `\bcrun: `), text("runc ", `\brunc (?:create|run) failed`),
			},
			confirm: func(f *finding) Confidence {
				// A program that the image lacks is the image's fault.
				if slices.ContainsFunc(f.lines, func(l string) bool { return strings.Contains(l, "executable file") }) {
					return ""
				}
				return Likely
			},
			say: func(f *finding) (string, string) {
				switch {
				case f.get("hybrid", "") != "":
					return "crun cannot start containers here: this machine has control groups of version 1 and 2 at the same time (hybrid mode).",
						ways("use another OCI runtime: install runc, and set runtime = \"runc\" under [engine] in containers.conf",
							"or start the machine with version 2 alone: systemd.unified_cgroup_hierarchy=1 on the kernel's command line")
				case f.get("down", "") != "":
					return "docker's service does not answer.", startRuntime("docker", f.e.OS, f.e.Root)
				case f.get("podman", "") != "":
					return "podman's service does not answer.", startRuntime("podman", f.e.OS, f.e.Root)
				}
				return "The container could not be started.", ways("start one by hand, and correct what it says: podman run --rm IMAGE true", "or build on the host")
			},
			hides: []string{"image-pull", "python-error"},
		},
		{
			id: "image-not-found", title: "The container image does not exist", modes: []int{11}, class: ClassFault,
			cause: "The name or the tag is wrong, or was removed: vendors delete images of old toolkits.",
			text: []pattern{
				text("manifest", `manifest (?:unknown|for \S+ not found)`), text("repository does not exist", `repository does not exist`),
				text("name unknown", `name unknown: (?P<image>\S+)?`), text("no such image", `(?i)no such image`), text("image not known", `(?P<image>\S+): image not known`), text("invalid reference format", `invalid reference format`),
			},
			say: func(f *finding) (string, string) {
				if image := cmp.Or(f.e.Image, f.get("image", "")); strings.HasPrefix(image, "localhost/") {
					return "This machine has no image " + image + ", and no registry can have one of that name.", ways("make it, or load it from an archive (podman load)", "name another image for the row")
				}
				return "The registry has no image " + cmp.Or(f.e.Image, "of that name") + ".", ways("check the tag in the registry; images for CUDA are called nvidia/cuda:VERSION-devel-OS", "name another image for the row")
			},
			hides: []string{"image-pull", "access-denied"},
		},
		{
			id: "image-pull", title: "The container image could not be pulled", modes: []int{11}, class: ClassNetwork,
			cause: "The registry was not reachable, too slow, or limits how often one may pull.",
			text: []pattern{
				text("pull", `(?i)(?:error|failed|unable)\b.*\bpull(?:ing)?\b.*image`), text("pinging container registry", `pinging container registry (?P<host>\S+):`),
				text("toomanyrequests", `(?P<limit>toomanyrequests)`), text("429", `(?:registry|manifest|docker\.io|quay\.io|ghcr\.io|nvcr\.io).*(?P<limit>429 \(?Too Many Requests)`),
				text("Too Many Requests", `(?i)(?P<limit>too many requests).*(?:registry|manifest|docker\.io|quay\.io|ghcr\.io|nvcr\.io)`),
				text("registry", `(?:https?://)?(?P<host>registry\S+?)/v2/.*(?P<slow>net/http: (?:TLS handshake timeout|request canceled).*|context deadline exceeded|i/o timeout)`),
				text("initializing source", `initializing source (?P<image>\S+):`), text("copying system image", `copying system image from manifest list`),
			},
			say: func(f *finding) (string, string) {
				d := "The container image could not be pulled"
				if image := cmp.Or(f.e.Image, strings.TrimPrefix(f.get("image", ""), "docker://")); image != "" {
					d = "The image " + image + " could not be pulled"
				}
				if f.get("limit", "") != "" {
					return d + ": the registry limits pulls.", ways("log in to the registry (podman login, docker login): limits are higher for users",
						"or use a mirror, or another registry that has the image", "rows that use one image in one job pull it once")
				}
				if f.get("slow", "") != "" {
					return d + ": the registry did not answer in time.", ways("kiln tries three times; if it lasts, the registry's status page says more", "a mirror or an archive of the image (podman load) does without it")
				}
				return d + ".", ways("kiln tries three times", "a mirror or an archive of the image (podman load) helps where the network is slow")
			},
			hides: []string{"network", "rate-limit"},
		},
		{
			id: "git-ref", title: "The source has no such branch, tag or commit", class: ClassFault, stages: []string{StageFetch, StagePrepare},
			cause: "The ref of the row is misspelled or was deleted, or the commit is not in what was fetched.",
			text: []pattern{
				text("Remote branch", `Remote branch (?P<ref>\S+) not found in upstream`), text("couldn't find remote ref", `couldn't find remote ref (?P<ref>\S+)`),
				text("reference is not a tree", `reference is not a tree: (?P<ref>\S+)`), text("did not match any file", `pathspec '(?P<ref>[^']+)' did not match any file`),
				text("not our ref", `upload-pack: not our ref (?P<ref>\S+)`), text("unadvertised object", `unadvertised object (?P<ref>\S+)`),
				text("unknown revision", `ambiguous argument '(?P<ref>[^']+)': unknown revision`),
			},
			say: func(f *finding) (string, string) {
				return "The repository does not have " + cmp.Or(f.get("ref", ""), "the ref of the row") + ".", ways("look it up: git ls-remote URL", "a commit that no branch or tag contains any more can't be fetched: use a tag")
			},
			hides: []string{"network", "access-denied"},
		},
		{
			id: "access-denied", title: "The server refused access", class: ClassFault, stages: []string{StageFetch, StagePrepare},
			cause: "The address needs a login, or does not exist: some servers answer both in the same way.",
			text: []pattern{
				text("40", `(?:HTTP error|HTTP Error|HTTP/\S+|status(?: code)?:?|ERROR|error:) ?(?P<code>40[1347])\b`), text("40", `\b(?P<code>40[134]) Client Error`),
				plain("Authentication failed for"), plain("could not read Username"), text("epository not found", `(?i)repository not found|Repository '.*' not found`),
				text("unauthorized", `(?i)unauthorized: `), text("denied: ", `denied: requested access`), plain("Permission denied (publickey)"),
				text("ERROR 404", `ERROR 404`),
			},
			say: func(f *finding) (string, string) {
				code := f.get("code", "")
				d := "The server wants a login, or does not have what was asked for"
				if code == "404" {
					d = "The server does not have the file (404)"
				} else if code != "" {
					d = "The server answered " + code
				}
				return d + ".", ways("check the address", "credentials belong to the fetch stage only: a .netrc or an index URL with a token there")
			},
			hides: []string{"network", "no-distribution", "dependency-not-found", "python-error"},
		},
		{
			id: "rate-limit", title: "A server limits how often it may be asked", modes: []int{11}, class: ClassNetwork,
			cause: "Package indexes and APIs count requests by address or account; hosted runners share addresses with strangers.",
			text: []pattern{
				text("429", `(?:HTTP error|HTTP Error|HTTP/\S+|status(?: code)?:?|ERROR|error:|get \S+:) ?429\b`), text("429", `\b429 (?:Client Error|Too Many Requests)`),
				text("rate limit", `(?i)API rate limit exceeded|secondary rate limit|exceeded a .*rate limit`), text("Retry-After", `Retry-After: (?P<wait>\d+)`),
			},
			confirm: func(f *finding) Confidence {
				if len(f.lines) == 1 && strings.HasPrefix(f.lines[0], "Retry-After") {
					return ""
				}
				return Likely
			},
			say: func(f *finding) (string, string) {
				d := "The server answered 429: too many requests came from this address or account"
				if wait := f.get("wait", ""); wait != "" {
					d += "; it asks to wait " + wait + " seconds"
				}
				return d + ".", ways("it is tried again by itself, after a pause", "a login raises the limit: credentials for the index, GITHUB_TOKEN for GitHub", "or a mirror of one's own (--index-url)")
			},
			hides: []string{"network", "access-denied", "no-distribution", "dependency-not-found", "python-error"},
		},
		{
			id: "network", title: "The network or a server failed", modes: []int{11}, class: ClassNetwork,
			stages: []string{StageFetch, StagePrepare, StagePreflight, StageCompile, StageTest},
			cause:  "A connection was refused, broken or too slow, a name was not resolved, or a server answered with an error of its own.",
			text: []pattern{
				text("Failed to establish a new connection", `Failed to establish a new connection: (?P<why>[^')]*)`),
				text("Could not resolve host", `(?P<why>Could not resolve host: (?P<host>\S+))`), text("name resolution", `(?P<why>Temporary failure in name resolution)`),
				text("Name or service not known", `(?P<why>Name or service not known)`), text("onnection", `(?P<why>[Cc]onnection (?:refused|reset by peer|timed out|aborted))`),
				text("timed out", `(?P<why>Read timed out|ReadTimeoutError|The read operation timed out|Connect(?:ion)? timed out|TimeoutError)`),
				text("rror", `(?:HTTP error|HTTP Error|Server Error|server error|status(?: code)?:?|error:) ?(?P<why>50[0234])\b`), text("Server Error", `(?P<why>50[0234]) Server Error`),
				text("IncompleteRead", `(?P<why>IncompleteRead)`), text("IncompleteDownload", `(?P<why>incomplete-download|IncompleteDownloadError)`), text("SSL", `(?P<why>SSLError|SSL: \w+|SSLEOFError|certificate verify failed)`),
				text("early EOF", `(?P<why>early EOF)`), text("remote end hung up", `(?P<why>remote end hung up unexpectedly)`), text("RPC failed", `(?P<why>RPC failed)`),
				text("Network is unreachable", `(?P<why>Network is unreachable)`), text("unexpected disconnect", `(?P<why>unexpected disconnect)`),
				text("Failed to fetch", `Failed to fetch\s+(?P<url>\S+)`), text("TLS handshake timeout", `(?P<why>TLS handshake timeout)`), text("i/o timeout", `(?P<why>i/o timeout)`),
			},
			classOf: func(f *finding) Class {
				if f.e.NetworkOff {
					return ClassFault
				}
				return ClassNetwork
			},
			say: func(f *finding) (string, string) {
				if f.e.NetworkOff && f.e.Stage == StageTest {
					return "The test opened a network connection, and tests run without network.", "a test that needs files from the network cannot run here: give it an import or expression that does not"
				}
				what, key := asked(f.e.Argv)
				return "A download did not work" + colon(f.get("why", "")) + "." + what, ways("it is tried again by itself, up to three times", "if it lasts: check the address, the proxy and the name server of this machine or container"+key)
			},
			hides: []string{"no-distribution", "dependency-not-found", "requires-python", "python-error"},
		},
	}
}

// asked says what a call of pip asked for and where, and what changes the place.
func asked(argv []string) (what, key string) {
	start := slices.Index(argv, "install")
	if start < 0 || !slices.Contains(argv, "pip") {
		return "", ""
	}
	index, torch := "its default index", false
	var wanted []string
	for i := start + 1; i < len(argv); i++ {
		switch arg := argv[i]; arg {
		case "--index-url":
			if i++; i < len(argv) {
				index = argv[i]
			}
		case "--find-links", "--constraint", "--report", "--requirement", "--use-feature", "--target":
			i++
		default:
			if !strings.HasPrefix(arg, "-") {
				wanted, torch = append(wanted, arg), torch || strings.HasPrefix(arg, "torch==")
			}
		}
	}
	key = "; --index-url names another index"
	if torch {
		key = "; --torch-index, or torch_source: in packages.yml, names another place for torch"
	}
	return " pip asked " + index + " for " + few(wanted, 3) + ".", key
}

// forceBuild names the variable that makes a known package compile.
func forceBuild(lines []string) string {
	for _, l := range lines {
		switch {
		case strings.Contains(l, "flash"):
			return "set FLASH_ATTENTION_FORCE_BUILD=TRUE in the row's env: it compiles then"
		case strings.Contains(l, "mamba"):
			return "set MAMBA_FORCE_BUILD=TRUE in the row's env: it compiles then"
		case strings.Contains(l, "causal"):
			return "set CAUSAL_CONV1D_FORCE_BUILD=TRUE in the row's env: it compiles then"
		}
	}
	return "set the package's variable that forces a build (FLASH_ATTENTION_FORCE_BUILD=TRUE for flash-attention) in the row's env"
}

func nightly(e *Evidence) bool {
	return strings.Contains(e.Torch, "dev") || strings.Contains(e.TorchFound, "dev") || slices.ContainsFunc(e.LogLines, func(l string) bool { return strings.Contains(l, "/nightly/") })
}

func head(s string, n int) string { return s[:min(n, len(s))] }

func dependencyEntries() []entry {
	noMatch := []pattern{
		text("Could not find a version", `Could not find a version that satisfies the requirement (?P<req>.+?)(?: \(from versions?: (?P<versions>[^)]*)\))?$`),
		text("No matching distribution", `No matching distribution found for (?P<req>.+)$`),
		text("no version of", `Because there is no version of (?P<req>\S+)`), text("was not found in the package registry", `(?P<req>\S+) was not found in the package registry`),
		text("ERROR: Ignored the following versions", `ERROR: Ignored the following versions that require a different python version: (?P<ignored>.*)`),
	}
	isTorch := func(f *finding) bool {
		r, err := wheel.ParseRequirement(cleanRequirement(f.get("req", "")))
		return err == nil && slices.Contains([]string{"torch", "torchvision", "torchaudio", "triton", "pytorch-triton", "pytorch-triton-rocm"}, wheel.NormalizeName(r.Name))
	}
	return []entry{
		{
			id: "dependency-conflict", title: "Two requirements contradict each other", class: ClassFault,
			cause: "The installer found no set of versions that satisfies all requirements.",
			text:  []pattern{text("conflicting dependencies", `Cannot install (?P<what>.+) because these package versions have conflicting dependencies`), plain("ResolutionImpossible"), text("No solution found when resolving", `No solution found when resolving`)},
			say: func(f *finding) (string, string) {
				return "Not installable together: " + cmp.Or(f.get("what", ""), "what was asked for") + ".", "loosen or drop one of the two; the lines after the message say who asks for what"
			},
			hides: []string{"no-distribution", "dependency-not-found"},
		},
		{
			id: "no-distribution", title: "This torch build does not exist", modes: []int{6}, class: ClassFault,
			cause: "PyTorch publishes each release for two or three CUDA versions and some Pythons only. torch 2.6 for CUDA 12.1, for instance, never existed.",
			text:  noMatch,
			confirm: func(f *finding) Confidence {
				if !isTorch(f) {
					return ""
				}
				return Certain
			},
			say: func(f *finding) (string, string) {
				r, _ := wheel.ParseRequirement(cleanRequirement(f.get("req", "")))
				req := f.get("req", "torch "+f.e.Torch)
				version := f.e.Torch
				for _, s := range r.Specifier.Specifiers() {
					version = s.Text()
				}
				version, local, _ := strings.Cut(version, "+")
				asked := cmp.Or(local, compat.TorchIndexSuffix(f.e.CUDA, f.e.ROCm))
				d := "The index has no " + req
				if f.e.Python != "" {
					d += " for Python " + f.e.Python
				}
				d += "."
				var fixes []string
				if builds := compat.Default().TorchBuilds(version); builds != nil {
					d += fmt.Sprintf(" torch %s exists for %s.", compat.Minor(version), join(builds))
					if asked != "cpu" && asked != "" && !slices.Contains(builds, asked) {
						fixes = append(fixes, "use one of these toolkits: "+join(builds))
					}
				} else if version != "" {
					d += " The compatibility table does not know torch " + compat.Minor(version) + "; it goes up to " + last(compat.Default().TorchSeries()) + "."
				}
				if series := torchWith(asked); len(series) > 0 {
					fixes = append(fixes, fmt.Sprintf("or a torch that has %s: %s", asked, few(series, 6)))
				}
				if v := f.get("versions", ""); v != "" && v != "none" {
					d += " The newest in the index: " + lastOf(v, 3) + "."
				} else if v == "none" {
					fixes = append(fixes, "the index has no torch at all for this Python and platform: check its URL (…/whl/"+cmp.Or(asked, "cu128")+")")
				}
				if len(fixes) == 0 {
					fixes = []string{"use a combination of torch, CUDA and Python that exists; `kiln plan` checks it before building"}
				}
				return d, ways(fixes...)
			},
			hides: []string{"dependency-not-found"},
		},
		{
			id: "requires-python", title: "A dependency does not support this Python", class: ClassFault,
			cause: "The versions that would fit ask for another Python.",
			text: []pattern{
				text("requires a different Python", `(?:Package|ERROR: Package) '(?P<req>[^']+)' requires a different Python: (?P<py>\S+) not in '(?P<want>[^']+)'`),
				text("require a different python version", `Ignored the following versions that require a different python version: (?P<ignored>.*)`),
			},
			say: func(f *finding) (string, string) {
				d := "Versions that would fit do not support this Python"
				if r := f.get("req", ""); r != "" {
					d = fmt.Sprintf("%s wants Python %s, and this is %s", r, f.get("want", ""), f.get("py", f.e.Python))
				} else if i := f.get("ignored", ""); i != "" {
					d += ": " + head(i, 200)
				}
				return d + ".", ways("use a Python that the dependency supports", "or a version of it that supports this Python")
			},
			hides: []string{"dependency-not-found"},
		},
		{
			id: "dependency-not-found", title: "A dependency was not found", modes: []int{7}, class: ClassFault,
			cause: "The name or version does not exist, or the index that was asked holds torch and little else: PyTorch's own index has no build tools.",
			text:  noMatch,
			confirm: func(f *finding) Confidence {
				if isTorch(f) {
					return ""
				}
				return Likely
			},
			say: func(f *finding) (string, string) {
				req := cleanRequirement(f.get("req", ""))
				versions := f.get("versions", "")
				var indexes []string
				for _, l := range f.e.LogLines {
					if _, v, ok := strings.Cut(l, "Looking in indexes: "); ok {
						for i := range strings.SplitSeq(v, ", ") {
							indexes = append(indexes, i)
						}
					}
				}
				switch {
				case versions != "" && versions != "none":
					return fmt.Sprintf("No version satisfies %s for this Python and platform. The newest in the index: %s.", req, lastOf(versions, 6)), "ask for a version that exists"
				case len(indexes) == 1 && (strings.Contains(indexes[0], "pytorch") || torchIndexPath(indexes[0])):
					return fmt.Sprintf("%s was looked for in %s alone, and that index has torch and its direct dependencies only.", req, indexes[0]),
						"install torch from its own index, and everything else from the default one, in two steps"
				case len(indexes) == 1:
					return fmt.Sprintf("%s was looked for in %s alone, which does not have it. If that index was meant for torch, the rest has to come from the default index.", req, indexes[0]),
						ways("install torch from its own index, and everything else from the default one, in two steps", "check the spelling of the name")
				case req == "":
					return "A dependency does not exist in the index.", ways("check its name and version", "install torch from its own index, and everything else from the default one, in two steps")
				}
				return fmt.Sprintf("The index has no %s for this Python and platform.", req), ways("check the spelling of the name", "a package without a wheel for this platform may need --no-binary and a compiler",
					"an index that answers with an error looks the same: pip -v shows it")
			},
			hides: []string{"python-error"},
		},
		{
			id: "no-venv", title: "Python cannot make virtual environments", class: ClassFault, stages: []string{StagePrepare, StageTest},
			cause: "Debian and Ubuntu ship the venv module in a package of its own.",
			text:  []pattern{plain("ensurepip is not available"), text("No module named", `No module named '?(?:venv|ensurepip)'?`), text("No module named pip", `No module named '?pip'?$`)},
			say: func(f *finding) (string, string) {
				return "The interpreter lacks the parts that make a virtual environment.", f.install("python-venv")
			},
			hides: []string{"missing-requirement", "python-error", "runtime-dependency"},
		},
		{
			id: "missing-requirement", title: "A build requirement is not installed", modes: []int{17}, class: ClassFault,
			stages: []string{StagePrepare, StagePreflight, StageCompile},
			cause:  "Builds run without isolation, because isolation would bring another torch. So everything that setup.py imports has to be in the environment.",
			text: []pattern{
				text("No module named", `ModuleNotFoundError: No module named '(?P<module>[^']+)'`),
				text("Missing dependencies", `Missing dependencies:(?P<rest>.*)`),
				text("invalid command 'bdist_wheel'", `invalid command '(?P<command>bdist_wheel)'`),
				text("Cannot import", `Backend '(?P<module>[^']+)' is not available`), text("BackendUnavailable", `BackendUnavailable: Cannot import '(?P<module>[^']+)'`),
				text("install_layout", `AttributeError: install_layout`),
				text("canonicalize_version", `canonicalize_version\(\) got an unexpected keyword argument`),
			},
			say: func(f *finding) (string, string) {
				module := f.get("module", "")
				if module == "" && f.get("command", "") != "" {
					module = "wheel"
				}
				if module == "" {
					for i, l := range f.e.LogLines { // "Missing dependencies:" has one name a line after it
						if strings.Contains(l, "Missing dependencies:") && i+1 < len(f.e.LogLines) {
							module = strings.TrimSpace(f.e.LogLines[i+1])
						}
					}
				}
				top, _, _ := strings.Cut(module, ".")
				switch top {
				case "pkg_resources":
					return "setup.py imports pkg_resources, which setuptools 82 and later no longer has.", "add setuptools<82 to the row's requirements"
				case "distutils":
					return "setup.py imports distutils, which left Python with 3.12; setuptools brings a copy.", "add setuptools to the row's requirements, or build with Python 3.11"
				case "torch":
					return "setup.py imports torch, and the environment has none.", ways("give the row a torch version", "if the package wants it from build-system.requires, build without isolation")
				case "":
					if slices.ContainsFunc(f.lines, func(l string) bool {
						return strings.Contains(l, "install_layout") || strings.Contains(l, "canonicalize_version")
					}) {
						return "The installed setuptools does not fit the other build tools.", "pin setuptools in the row's requirements, for instance setuptools==69.5.1, and add packaging"
					}
					return "setup.py needs a package that is not in the environment.", "add it to the row's extra_deps"
				}
				req := moduleRequirement(top, f.e.Requirements)
				d := fmt.Sprintf("The build imports %s, which is not in the environment.", module)
				if declared(req, f.e.Requirements) {
					return d + " The package does name " + req + " in build-system.requires.", "install what build-system.requires names before the build: add " + req + " to the row's extra_deps"
				}
				if len(f.e.Requirements) > 0 {
					d += " The package does not name it in build-system.requires."
				}
				return d, "add " + req + " to the row's extra_deps"
			},
			hides: []string{"python-error", "compile-error", "runtime-dependency", "no-native-module"},
		},
		{
			id: "patch-failed", title: "A patch did not apply", modes: []int{26}, class: ClassFault,
			cause: "The source differs from the one that the patch was made for. A patch that changes nothing is an error too: its change would be missing without notice.",
			text: []pattern{
				text("FAILED", `Hunk #\d+ FAILED at (?P<line>\d+)`), text("patch failed:", `error: patch failed: (?P<file>[^:]+)`), text("patch does not apply", `error: (?P<file>[^:]+): patch does not apply`),
				text("can't find file to patch", `can't find file to patch`), text("changed 0 places", `changed 0 places`), text("corrupt patch", `corrupt patch at line \d+`),
				text("Reversed (or previously applied) patch", `Reversed \(or previously applied\) patch detected`),
			},
			say: func(f *finding) (string, string) {
				d := "The text that the patch replaces was not found"
				if file := f.get("file", ""); file != "" {
					d += " in " + file
				}
				if slices.ContainsFunc(f.lines, func(l string) bool { return strings.Contains(l, "previously applied") }) {
					return "The source already has the change.", "drop the patch for this version"
				}
				return d + ".", ways("make the patch anew for this version of the source", "or limit it to the versions it was made for")
			},
			hides: []string{"compile-error"},
		},
	}
}

// torchIndexPath says whether the last folder of an index URL is one of PyTorch's.
func torchIndexPath(url string) bool {
	url = strings.TrimRight(url, "/")
	dir := url[strings.LastIndexByte(url, '/')+1:]
	return dir == "cpu" || strings.HasPrefix(dir, "cu1") || strings.HasPrefix(dir, "rocm")
}

// cleanRequirement drops what pip writes after a requirement.
func cleanRequirement(s string) string {
	s, _, _ = strings.Cut(s, " (from ")
	return strings.TrimSpace(s)
}

// torchWith are the torch series that are published for a toolkit, newest first.
func torchWith(toolkit string) []string {
	var out []string
	for _, s := range slices.Backward(compat.Default().TorchSeries()) {
		if slices.Contains(compat.Default().TorchBuilds(s), toolkit) {
			out = append(out, s)
		}
	}
	return out
}

func last(list []string) string {
	if len(list) == 0 {
		return ""
	}
	return list[len(list)-1]
}

// lastOf is the end of a comma list, the newest versions.
func lastOf(list string, n int) string {
	all := strings.Split(list, ", ")
	if len(all) <= n {
		return join(all)
	}
	return strings.Join(all[len(all)-n:], ", ")
}

// distributions are packages whose module has another name.
var distributions = map[string]string{
	"yaml": "PyYAML", "PIL": "Pillow", "cv2": "opencv-python", "sklearn": "scikit-learn", "skbuild": "scikit-build",
	"scikit_build_core": "scikit-build-core", "Cython": "Cython", "setuptools_scm": "setuptools-scm", "poetry": "poetry-core",
	"attr": "attrs", "git": "GitPython", "google": "protobuf", "dateutil": "python-dateutil", "flash_attn": "flash-attn",
	"hatchling": "hatchling", "flit_core": "flit-core", "mesonpy": "meson-python", "pybind11": "pybind11", "jinja2": "Jinja2",
}

// moduleRequirement is what to install to get a module: what the requirements name if
// one of them fits, else the known or the same name.
func moduleRequirement(module string, requirements []string) string {
	for _, line := range requirements {
		if r, err := wheel.ParseRequirement(line); err == nil && wheel.NormalizeName(r.Name) == wheel.NormalizeName(module) {
			return line
		}
	}
	if d := distributions[module]; d != "" {
		return d
	}
	return strings.ReplaceAll(module, "_", "-")
}

// declared says whether a requirement is among others, by name.
func declared(req string, requirements []string) bool {
	r, err := wheel.ParseRequirement(req)
	if err != nil {
		return false
	}
	return slices.ContainsFunc(requirements, func(line string) bool {
		o, err := wheel.ParseRequirement(line)
		return err == nil && wheel.NormalizeName(o.Name) == wheel.NormalizeName(r.Name)
	})
}

// number reads the leading digits of a string.
func number(s string) int {
	i := strings.IndexFunc(s, func(r rune) bool { return r < '0' || r > '9' })
	if i >= 0 {
		s = s[:i]
	}
	n, _ := strconv.Atoi(s) // no digits, or too many: 0
	return n
}
