package serve

import (
	"net/http"
	"strings"

	"github.com/kiln-build/kiln/index"
)

// notAcceptable is the body of a 406.
const notAcceptable = "not acceptable: this page exists as " + index.TypeJSON + ", " + index.TypeHTML + " and " + index.TypeText + "\n"

// A client with a longer Accept header, or with more ranges in it, gets HTML.
const (
	maxAcceptBytes  = 8 << 10
	maxAcceptRanges = 64
)

// representation is a serialization of an API page. The order is the one in which explicitly
// named types win a tie; wildcards win in the opposite order.
type representation int

const (
	repJSON representation = iota
	repHTML
	repText
	repCount
)

var repTypes = [repCount]string{index.TypeJSON, index.TypeHTML, index.TypeText}

// contentType returns the header's value; JSON is UTF-8 by definition.
func (r representation) contentType() string {
	if r == repJSON {
		return index.TypeJSON
	}
	return repTypes[r] + "; charset=utf-8"
}

// namedRepresentation returns the representation a media type names, which is in lower case.
func namedRepresentation(mediaType string) (representation, bool) {
	switch mediaType {
	case index.TypeJSON, "application/vnd.pypi.simple.latest+json":
		return repJSON, true
	case index.TypeHTML, "application/vnd.pypi.simple.latest+html":
		return repHTML, true
	case index.TypeText:
		return repText, true
	}
	return 0, false
}

// negotiate chooses the representation of an API page for a request. It is not ok if none
// is acceptable.
func negotiate(header http.Header, rawQuery string) (representation, bool) {
	if rawQuery != "" {
		if format, ok := queryValue(rawQuery, "format"); ok {
			return namedRepresentation(strings.ReplaceAll(format, " ", "+"))
		}
	}
	accept := header.Values("Accept")
	switch len(accept) {
	case 0:
		return repText, true
	case 1:
		return negotiateAccept(accept[0])
	}
	return negotiateAccept(strings.Join(accept, ","))
}

// How closely a range matched a representation.
const (
	unmatched = iota
	matchedAll
	matchedType
	matchedExactly
)

func negotiateAccept(accept string) (representation, bool) {
	if strings.Trim(accept, " \t,") == "" || len(accept) > maxAcceptBytes || strings.Count(accept, ",") >= maxAcceptRanges {
		return repText, true
	}
	var quality, match [repCount]int // quality in thousandths
	take := func(r representation, how, q int) {
		if how > match[r] || how == match[r] && q > quality[r] {
			match[r], quality[r] = how, q
		}
	}
	for part := range strings.SplitSeq(accept, ",") {
		mediaType, params, _ := strings.Cut(part, ";")
		q, ok := qualityParam(params)
		if !ok {
			continue
		}
		mediaType = strings.ToLower(strings.Trim(mediaType, " \t"))
		switch mediaType {
		case "*/*":
			for r := range repCount {
				take(r, matchedAll, q)
			}
		case "application/*":
			take(repJSON, matchedType, q)
			take(repHTML, matchedType, q)
		case "text/*":
			take(repText, matchedType, q)
		default:
			if r, ok := namedRepresentation(mediaType); ok {
				take(r, matchedExactly, q)
			}
		}
	}
	best, found := repText, false
	for r := range repCount {
		if match[r] == unmatched || quality[r] == 0 {
			continue
		}
		if !found || better(r, best, quality, match) {
			best, found = r, true
		}
	}
	return best, found
}

// better reports whether r is preferred to the representation s before it in the order.
func better(r, s representation, quality, match [repCount]int) bool {
	if quality[r] != quality[s] {
		return quality[r] > quality[s]
	}
	named, sNamed := match[r] == matchedExactly, match[s] == matchedExactly
	if named != sNamed {
		return named
	}
	return !named // a browser that takes anything is shown HTML
}

// qualityParam returns the q among the parameters of a range, in thousandths. It is not ok
// if q is malformed.
func qualityParam(params string) (int, bool) {
	for param := range strings.SplitSeq(params, ";") {
		key, value, found := strings.Cut(param, "=")
		if !found || !strings.EqualFold(strings.Trim(key, " \t"), "q") {
			continue
		}
		return parseQuality(strings.Trim(value, " \t"))
	}
	return 1000, true
}

func parseQuality(s string) (int, bool) {
	if s == "" || len(s) > len("0.000") || s[0] != '0' && s[0] != '1' || len(s) > 1 && s[1] != '.' {
		return 0, false
	}
	q, unit := int(s[0]-'0')*1000, 100
	for _, c := range []byte(s[min(2, len(s)):]) {
		if c < '0' || c > '9' {
			return 0, false
		}
		q += int(c-'0') * unit
		unit /= 10
	}
	return q, q <= 1000
}

// AcceptsGzip reports whether a request allows the gzip coding.
func AcceptsGzip(header http.Header) bool {
	star, starSet := false, false
	for _, line := range header.Values("Accept-Encoding") {
		if len(line) > maxAcceptBytes {
			return false
		}
		for part := range strings.SplitSeq(line, ",") {
			coding, params, _ := strings.Cut(part, ";")
			q, ok := qualityParam(params)
			switch coding = strings.ToLower(strings.Trim(coding, " \t")); coding {
			case "gzip", "x-gzip":
				return ok && q > 0
			case "*":
				star, starSet = ok && q > 0, true
			}
		}
	}
	return star && starSet
}
