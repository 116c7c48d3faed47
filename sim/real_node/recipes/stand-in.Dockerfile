# A minimal Debian with Debian's Python, as a replacement for the bases of our Dockerfile.
# It contains nothing of the build machine; pip and apt get their sources from the mounts of a build.
# It tests our layers, not the pull. Never publish an image built on it.
FROM scratch
ADD rootfs.tar /
ENV PATH=/usr/local/bin:/usr/local/sbin:/usr/sbin:/usr/bin:/sbin:/bin LANG=C.UTF-8
CMD ["python3"]
