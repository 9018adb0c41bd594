#!/usr/bin/env python3
"""Packs a static busybox as a `docker save` archive: busybox-image.py BUSYBOX OUT.tar NAME [KEY=VALUE env…]

Another environment gives another image id.
"""
import hashlib, io, json, subprocess, sys, tarfile


def main(busybox, out, name, *env):
    layer = io.BytesIO()
    with tarfile.open(fileobj=layer, mode="w") as tar:
        def add(path, kind=tarfile.REGTYPE, mode=0o755, data=b"", link=""):
            info = tarfile.TarInfo(path)
            info.type, info.mode, info.size, info.linkname = kind, mode, len(data), link
            tar.addfile(info, io.BytesIO(data))
        for path, mode in (("bin", 0o755), ("etc", 0o755), ("tmp", 0o1777), ("root", 0o700), ("home", 0o755), ("var", 0o755)):
            add(path, tarfile.DIRTYPE, mode)
        with open(busybox, "rb") as program:
            add("bin/busybox", data=program.read())
        for applet in subprocess.run([busybox, "--list"], check=True, capture_output=True, text=True).stdout.split():
            if applet != "busybox":
                add("bin/" + applet, tarfile.SYMTYPE, link="busybox")
        add("etc/passwd", mode=0o644, data=b"root:x:0:0:root:/root:/bin/sh\n")
        add("etc/group", mode=0o644, data=b"root:x:0:\n")
    data = layer.getvalue()
    config = json.dumps({
        "architecture": "amd64", "os": "linux", "created": "1970-01-01T00:00:00Z",
        "config": {"Env": ["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", *env], "Cmd": ["sh"]},
        "rootfs": {"type": "layers", "diff_ids": ["sha256:" + hashlib.sha256(data).hexdigest()]},
    }).encode()
    manifest = json.dumps([{"Config": "config.json", "RepoTags": [name], "Layers": ["layer.tar"]}]).encode()
    with tarfile.open(out, "w") as tar:
        for path, content in (("config.json", config), ("layer.tar", data), ("manifest.json", manifest)):
            info = tarfile.TarInfo(path)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))


main(*sys.argv[1:])
