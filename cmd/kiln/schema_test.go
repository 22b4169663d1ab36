package main

import (
	"bytes"
	"os"
	"strings"
	"testing"
)

// TestSchema: `kiln schema` prints the committed file, byte for byte.
func TestSchema(t *testing.T) {
	want, err := os.ReadFile("../../matrix/schema/packages.schema.json")
	if err != nil {
		t.Fatal(err)
	}
	var stdout, stderr bytes.Buffer
	if code := run([]string{"schema"}, strings.NewReader(""), &stdout, &stderr); code != exitDone {
		t.Fatalf("exit code %d: %s", code, stderr.Bytes())
	}
	if !bytes.Equal(stdout.Bytes(), want) {
		t.Errorf("printed %d bytes that are not the %d of matrix/schema/packages.schema.json", stdout.Len(), len(want))
	}
}
