package main

import (
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// commandInfo is a command as manuals describe it.
type commandInfo struct {
	Name     string        `json:"name"` // kiln model compile
	Use      string        `json:"use"`  // with arguments
	Short    string        `json:"short"`
	Long     string        `json:"long,omitempty"`
	Example  string        `json:"example,omitempty"`
	Flags    []flagInfo    `json:"flags,omitempty"`
	Commands []commandInfo `json:"commands,omitempty"`
}

type flagInfo struct {
	Name      string `json:"name"`
	Shorthand string `json:"shorthand,omitempty"`
	Value     string `json:"value,omitempty"` // what it takes; empty for a switch
	Usage     string `json:"usage"`
	Default   string `json:"default,omitempty"`
}

// commandsCommand prints all commands, from which the manual pages and docs/commands.md are made.
func (a *app) commandsCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "commands",
		Short:   "Print all commands and flags as JSON",
		Example: "  kiln commands | jq '.commands[].name'",
		Args:    cobra.NoArgs,
		Hidden:  true,
		RunE:    func(cmd *cobra.Command, _ []string) error { return a.printJSON(describe(cmd.Root())) },
	}
}

func describe(cmd *cobra.Command) commandInfo {
	info := commandInfo{Name: cmd.CommandPath(), Use: cmd.UseLine(), Short: cmd.Short, Long: cmd.Long, Example: cmd.Example}
	cmd.NonInheritedFlags().VisitAll(func(f *pflag.Flag) {
		if f.Hidden || f.Name == "help" {
			return
		}
		value, usage := pflag.UnquoteUsage(f)
		flag := flagInfo{Name: f.Name, Shorthand: f.Shorthand, Value: value, Usage: usage}
		if f.DefValue != "false" && f.DefValue != "[]" && f.DefValue != "0" && f.DefValue != "0s" {
			flag.Default = f.DefValue
		}
		info.Flags = append(info.Flags, flag)
	})
	for _, sub := range cmd.Commands() {
		if sub.IsAvailableCommand() && sub.Name() != "help" && sub.Name() != "completion" {
			info.Commands = append(info.Commands, describe(sub))
		}
	}
	return info
}
