package machine

import (
	"golang.org/x/sys/windows/registry"
)

func localRegistry(key, value string) (string, bool) {
	k, err := registry.OpenKey(registry.LOCAL_MACHINE, key, registry.QUERY_VALUE|registry.WOW64_32KEY)
	if err != nil {
		return "", false
	}
	defer k.Close()
	s, _, err := k.GetStringValue(value)
	return s, err == nil
}
