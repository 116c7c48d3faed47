// NVIDIA's own `nvidia-ctk runtime`, without the other commands, which need the driver's library and a C compiler.
package main

import (
	"context"
	"fmt"
	"os"

	"github.com/NVIDIA/nvidia-container-toolkit/cmd/nvidia-ctk/runtime"
	"github.com/sirupsen/logrus"
	"github.com/urfave/cli/v3"
)

func main() {
	command := &cli.Command{Name: "nvidia-ctk", Commands: []*cli.Command{runtime.NewCommand(logrus.New())}}
	if err := command.Run(context.Background(), os.Args); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
