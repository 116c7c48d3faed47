# A minimal Debian with Debian's own Python, in the place of whatever base our Dockerfile builds on.
# It holds nothing of the machine that made it; pip and apt get their sources from the mounts of a build.
# It proves our layers, not the pull, and an image built on it must never be published.
FROM scratch
ADD rootfs.tar /
ENV PATH=/usr/local/bin:/usr/local/sbin:/usr/sbin:/usr/bin:/sbin:/bin LANG=C.UTF-8
CMD ["python3"]
