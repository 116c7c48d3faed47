module nvidia-ctk

go 1.26.0

require (
	github.com/NVIDIA/nvidia-container-toolkit v1.20.1
	github.com/sirupsen/logrus v1.10.2
	github.com/urfave/cli/v3 v3.14.0
)

require (
	github.com/pelletier/go-toml v1.9.5 // indirect
	golang.org/x/sys v0.48.0 // indirect
)
