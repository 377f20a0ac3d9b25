// Package main is a Kubernetes control plane for tests: etcd, kube-apiserver,
// kube-controller-manager and kube-scheduler in one binary, chosen by the name it is called with.
//
// One binary because the four share nearly all of their code: it builds once instead of four times.
// It adds nothing to the components and takes their own flags.
package main

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"
	"go.etcd.io/etcd/server/v3/etcdmain"
	"k8s.io/component-base/cli"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	controllermanager "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
)

// Each name it may be called with, and how that component's own command is made.
var commands = map[string]func() *cobra.Command{
	"kube-apiserver":          apiserver.NewAPIServerCommand,
	"kube-controller-manager": controllermanager.NewControllerManagerCommand,
	"kube-scheduler":          func() *cobra.Command { return scheduler.NewSchedulerCommand() },
}

func main() {
	name := filepath.Base(os.Args[0])
	if name == "etcd" {
		etcdmain.Main(os.Args)
		return
	}
	command, known := commands[name]
	if !known {
		fmt.Fprintf(os.Stderr, "expected to be called etcd, kube-apiserver, "+
			"kube-controller-manager or kube-scheduler, got %q\n", name)
		os.Exit(2)
	}
	os.Exit(cli.Run(command()))
}
