package ops

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"strings"
)

// ParseFlags sets every flag of fs from the environment and then from args, so
// that a flag beats the environment and the environment beats the default.
//
// The variable of a flag is prefix + "_" + its name in capitals with dashes as
// underscores: flag listen-ops under PREFIXROUTE_INDEXER is
// PREFIXROUTE_INDEXER_LISTEN_OPS. An empty variable counts as unset. All
// mistakes are reported at once; [flag.ErrHelp] comes back as it is.
func ParseFlags(fs *flag.FlagSet, prefix string, args []string, getenv func(string) string) error {
	// The flag package would print each error by itself, beside the caller's.
	usage := fs.Output()
	fs.SetOutput(io.Discard)
	var errs []error
	fs.VisitAll(func(f *flag.Flag) {
		name := EnvName(prefix, f.Name)
		v := getenv(name)
		if v == "" {
			return
		}
		if err := fs.Set(f.Name, v); err != nil {
			errs = append(errs, fmt.Errorf("%s is %q: %w", name, v, err))
		}
	})
	err := fs.Parse(args)
	fs.SetOutput(usage)
	if errors.Is(err, flag.ErrHelp) {
		printUsage(fs, prefix)
		return err
	}
	if err != nil {
		errs = append(errs, err)
	}
	if fs.NArg() > 0 {
		errs = append(errs, fmt.Errorf("unexpected argument %q: every setting is a flag", fs.Arg(0)))
	}
	return errors.Join(errs...)
}

// EnvName is the environment variable of the flag name under prefix.
func EnvName(prefix, name string) string {
	return prefix + "_" + strings.ToUpper(strings.ReplaceAll(name, "-", "_"))
}

func printUsage(fs *flag.FlagSet, prefix string) {
	fmt.Fprintf(fs.Output(), "Usage of %s. Each flag can also be set as %s_<FLAG>, for example %s.\n",
		fs.Name(), prefix, EnvName(prefix, firstFlag(fs)))
	fs.PrintDefaults()
}

func firstFlag(fs *flag.FlagSet) string {
	first := ""
	fs.VisitAll(func(f *flag.Flag) {
		if first == "" {
			first = f.Name
		}
	})
	return first
}
