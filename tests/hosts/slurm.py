"""Slurm on the hosts of network.py: its daemons, without authentication, from `Slurm()` to `stop`."""

import shlex
import shutil
import subprocess
import time
from typing import Any

from network import ADDRESSES, NAMES, PATIENCE, CannotBeMadeError, Network

TOOLS = ("slurmctld", "slurmd", "srun", "salloc", "sbatch", "sinfo")
CPUS = 2  # of a node, whatever the machine has

# Each host has shared memory of its own, but not a /tmp, where Slurm's PMIx would keep files under the job's number.
MPI_CONF = "PMIxCliTmpDirBase=/dev/shm\n"


def _slurm_conf(folder: Any) -> str:
    nodes = [f"NodeName={n} NodeAddr={a} CPUs={CPUS}" for n, a in zip(NAMES, ADDRESSES, strict=True)]
    return "\n".join(
        [
            "ClusterName=mpixla",
            f"SlurmctldHost={NAMES[0]}({ADDRESSES[0]})",
            "AuthType=auth/none",
            "CredType=cred/none",
            "SlurmUser=root",
            "ProctrackType=proctrack/pgid",
            "TaskPlugin=task/none",
            "SelectType=select/cons_tres",
            "SelectTypeParameters=CR_Core",
            "SwitchType=switch/none",
            "SlurmdParameters=config_overrides",  # the machine may have fewer processors
            "MailProg=/bin/true",
            f"StateSaveLocation={folder}/state",
            f"SlurmdSpoolDir={folder}/spool-%n",
            f"SlurmctldPidFile={folder}/slurmctld.pid",
            f"SlurmdPidFile={folder}/slurmd-%n.pid",
            *nodes,
            "PartitionName=all Nodes=ALL Default=YES State=UP",
            "",
        ]
    )


class Slurm:
    """Two nodes and their controller, on the first host."""

    def __init__(self, network: Network) -> None:
        """Start the daemons.

        Raises:
            CannotBeMadeError: and nothing is left of them.
        """
        missing = [tool for tool in TOOLS if not shutil.which(tool)]
        if missing:
            raise CannotBeMadeError(f"{', '.join(missing)} not found (on Debian: apt-get install slurm-wlm)")
        self._network, self._folder = network, network.folder / "slurm"
        (self._folder / "state").mkdir(parents=True)
        (self._folder / "slurm.conf").write_text(_slurm_conf(self._folder))
        (self._folder / "mpi.conf").write_text(MPI_CONF)
        self._daemons = []
        for host, daemon in ((NAMES[0], "slurmctld -i"), *((name, "slurmd") for name in NAMES)):
            with (self._folder / f"{daemon.split()[0]}-{host}.log").open("w") as log:
                command = self._command(host, f"{daemon} -D")
                self._daemons.append(subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log))
        until = time.monotonic() + PATIENCE
        while self.run("sinfo --noheader --format %T").stdout.split() != ["idle"]:
            if time.monotonic() > until:
                said = "".join(f"\n-- {log.name}\n{log.read_text()}" for log in self._folder.glob("*.log"))
                self.stop()
                raise CannotBeMadeError(f"Slurm's nodes are not up after {PATIENCE} s{said}")
            time.sleep(0.1)

    def _command(self, host: str, command: str) -> list[str]:
        return [str(self._network.ssh), host, f"export SLURM_CONF={self._folder}/slurm.conf; exec {command}"]

    def run(self, command: str, timeout: float = 100) -> subprocess.CompletedProcess[str]:
        """Run a shell command on the first host.

        Raises:
            subprocess.TimeoutExpired: if it does not end in time.
        """
        words = self._command(NAMES[0], f"sh -c {shlex.quote(command)}")
        return subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=timeout)

    def stop(self) -> None:
        for host in self._network.hosts:
            host.kill_all()
        for daemon in self._daemons:
            daemon.wait()
        shutil.rmtree(self._folder)
