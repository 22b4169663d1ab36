package fatbin

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
)

const (
	archiveMagic = "!<arch>\n"
	thinMagic    = "!<thin>\n"

	memberHeader  = 60
	maxMembers    = 1 << 20
	maxMemberName = 4096
)

// archive reads the objects of a static archive. Each member has a header of text:
// 0 name, 48 size, 58 two bytes that end it; members begin at even offsets. Names of more
// than 15 bytes are in a member called "//" (GNU, Windows) or before the data (BSD).
func (s *scanner) archive() error {
	var magic [8]byte
	if err := readAt(s.r, magic[:], 0); err != nil {
		return err
	}
	if string(magic[:]) == thinMagic {
		return notSupported("thin archive: its members are other files")
	}
	var long window // the GNU table of names
	at := int64(len(archiveMagic))
	for count := 0; at < s.size; count++ {
		if count >= maxMembers {
			return malformed("more than %d members", maxMembers)
		}
		if s.size-at < memberHeader {
			tail := make([]byte, s.size-at)
			if err := readAt(s.r, tail, at); err != nil {
				return err
			}
			if len(bytes.Trim(tail, "\n\x00")) == 0 {
				return nil
			}
			return malformed("%d bytes behind the last member", len(tail))
		}
		var head [memberHeader]byte
		if err := readAt(s.r, head[:], at); err != nil {
			return err
		}
		size, err := strconv.ParseUint(string(bytes.TrimRight(head[48:58], " ")), 10, 62)
		if err != nil || string(head[58:]) != "`\n" {
			return malformed("member header at offset %d", at)
		}
		data := at + memberHeader
		if size > uint64(s.size-data) {
			return malformed("member at offset %d: %d bytes, of which %d are there", at, size, s.size-data)
		}
		end := data + int64(size)
		at = end + end%2

		name := string(bytes.TrimRight(head[:16], " "))
		switch {
		case name == "/" || name == "/SYM64/":
			continue
		case name == "//":
			long = window{r: io.NewSectionReader(s.r, data, int64(size)), end: int64(size)}
			continue
		case strings.HasPrefix(name, "#1/"):
			n, err := strconv.ParseUint(name[3:], 10, 31)
			if err != nil || n > maxMemberName || n > size {
				return malformed("member name %q", name)
			}
			b := make([]byte, n)
			if err := readAt(s.r, b, data); err != nil {
				return err
			}
			name = string(bytes.TrimRight(b, "\x00"))
			data += int64(n)
		case len(name) > 1 && name[0] == '/':
			if off, ok := longName(name); ok {
				if name, err = long.name(off, maxMemberName); err != nil {
					return fmt.Errorf("member name %q: %w", name, err)
				}
				name, _, _ = strings.Cut(name, "\n")
			}
		}
		if err := s.archiveMember(strings.TrimSuffix(name, "/"), data, end-data); err != nil {
			return err
		}
	}
	return nil
}

// archiveMember reads a member if it is an object. One that is damaged does not hide the
// others.
func (s *scanner) archiveMember(name string, off, size int64) error {
	r := io.NewSectionReader(s.r, off, size)
	format, err := Detect(r, size)
	if err != nil {
		return err
	}
	kept, err := s.intern([]byte(name))
	if err != nil {
		return err
	}
	s.member = kept
	defer func() { s.member = "" }()
	switch err := s.object(format, off, size); {
	case errors.Is(err, ErrMalformed), errors.Is(err, ErrNotSupported):
		if len(s.entries) >= MaxEntries || len(s.targets) >= MaxEntries {
			return err
		}
		s.note(err)
		return nil
	default:
		return err
	}
}
