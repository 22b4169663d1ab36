// Command python32 stands for a Python of 32 bits, as far as kiln's question goes what it is.
package main

import "fmt"

func main() {
	fmt.Println(`{"python": "3.13", "python_full": "3.13.5", "executable": "C:\\Python313\\python.exe", "platform": "win32", "headers": true, "venv": true}`)
}
