package depfile

import (
	"encoding/json"
	"fmt"
)

// ParseMSVC returns the headers of what cl writes with /sourceDependencies.
func ParseMSVC(text []byte) ([]string, error) {
	var document struct {
		Data struct {
			Includes []string
		}
	}
	if err := json.Unmarshal(text, &document); err != nil {
		return nil, fmt.Errorf("not a list of cl's source dependencies: %w", err)
	}
	return document.Data.Includes, nil
}
