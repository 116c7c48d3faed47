# Builds two images. Both run as root with a read-only root file system. They write to /tmp (also the working directory, in
# which DCGM's plugins write files), /var/lib/gpu-healthcheck (the agent's state) and, if DCGM's own logs are enabled,
# /var/log/nvidia-dcgm. The kernel log needs root (docs/decisions/0007-agent-container-is-privileged.md).
#
#   docker build -t REGISTRY/gpu-healthcheck:0.4.0 .                      DCGM, the tools of EFA and RDMA: agent and Jobs
#   docker build -t REGISTRY/gpu-healthcheck:0.4.0-slim --target slim .   agent only, deep diagnostics in Jobs (overlay slim-agent)
#
# --build-arg EFA_FROM=distribution   libfabric from the base's distribution instead of AWS (buildah 1.28 also needs the
#                                     default as an argument: EFA_FROM=aws)
# --secret id=pip,src=pip.conf        pip's configuration (an index, a certificate); it is stored in no layer
# REVISION and SOURCE                 the commit and the repository of these sources, for the labels
# SOURCE_DATE_EPOCH                   the time of the wheel's files; with the same time for the builder (buildah --timestamp)
#                                     the image is bit-identical each time (docs/releasing.md)

# Both bases must have the same minor version of Python, because the virtual environment is copied into both. Ubuntu 24.04
# has 3.12. A release rejects a base without a digest; Renovate writes the digests.
ARG PYTHON_IMAGE=docker.io/library/python:3.12-slim@sha256:78387bc3881b8273120a12ebe6c1ab22b018ccc2c9adf565ae1ac9b536e184ea
ARG DCGM_IMAGE=nvcr.io/nvidia/cloud-native/dcgm:4.6.1-1-ubuntu24.04@sha256:48464e50aa76671f5b204264cb4999739591112bf74330a727523f5655c6d7f2
ARG EFA_FROM=aws
ARG VERSION=0.4.0
ARG REVISION=""
ARG SOURCE=""


# The virtual environment: only wheels, so no compiler; no pip; bytecode that Python does not check, because it cannot update
# it on a read-only root. The product is in a separate layer from its dependencies, so that a new version is a small layer.
FROM ${PYTHON_IMAGE} AS build
# Saves 0.5 MiB of the agent's memory: a traceback then shows the line without a marker in it.
ENV PYTHONNODEBUGRANGES=1
WORKDIR /src
COPY requirements/product.txt requirements/build.txt requirements/
RUN --mount=type=secret,id=pip,target=/etc/pip.conf \
    python3 -m venv --without-pip /opt/gpu-healthcheck \
 && python3 -m venv --without-pip /opt/build \
 && python3 -m pip --python /opt/gpu-healthcheck/bin/python3 install --no-cache-dir --no-compile \
      --only-binary :all: --require-hashes -r requirements/product.txt \
 && python3 -m pip --python /opt/build/bin/python3 install --no-cache-dir --no-compile \
      --only-binary :all: --require-hashes -r requirements/build.txt
# Remove 130 MB of unused files (tests/image checks that they are not imported): the Kubernetes client's generated classes
# (docs/decisions/0005-kubernetes-client-without-models.md), its asynchronous variant with its dependencies, and the packages'
# scripts. pip has already compiled some modules with bytecode that depends on file times: -f compiles them again.
WORKDIR /opt/gpu-healthcheck
RUN python3 -m pip --python bin/python3 uninstall --yes --quiet \
      aiohappyeyeballs aiohttp aiohttp-retry aiosignal frozenlist multidict propcache yarl \
 && rm -r lib/python3.*/site-packages/kubernetes/aio \
 && find lib/python3.*/site-packages/kubernetes/client/api lib/python3.*/site-packages/kubernetes/client/models \
      -name '*.py' -not -name __init__.py -delete \
 && find bin -type f -delete \
 && python3 -m compileall -qf --invalidation-mode unchecked-hash lib
WORKDIR /src
COPY pyproject.toml LICENSE ./
COPY kubernetes/manifests/04-daemonset-agent.yaml kubernetes/manifests/
COPY gpu_healthcheck gpu_healthcheck
COPY healthcheck healthcheck
COPY agent agent
COPY sweeper sweeper
COPY diagnosis diagnosis
COPY cli cli
COPY evict evict
COPY quarantine quarantine
COPY repair repair
ARG SOURCE_DATE_EPOCH
RUN python3 -m pip --python /opt/build/bin/python3 wheel --no-cache-dir --no-index --no-deps --no-build-isolation \
      --wheel-dir /wheels . \
 && python3 -m pip --python /opt/gpu-healthcheck/bin/python3 install --no-cache-dir --no-compile --no-index --no-deps \
      --root /product /wheels/*.whl \
 && python3 -m compileall -q --invalidation-mode unchecked-hash -s /product /product


FROM ${PYTHON_IMAGE} AS slim
ARG VERSION
ARG REVISION
ARG SOURCE
LABEL org.opencontainers.image.title="gpu-healthcheck" \
      org.opencontainers.image.description="GPU node health for Kubernetes: the agent alone" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}" \
      org.opencontainers.image.source="${SOURCE}" \
      org.opencontainers.image.licenses="MIT-0"
ENV PYTHONNODEBUGRANGES=1
# This base lacks the bytecode of the standard library; with a read-only root, Python would compile it at every start.
RUN python3 -m compileall -q --invalidation-mode unchecked-hash -x '/(site-packages|test|tests|idlelib|lib2to3)/' \
      "$(python3 -c 'import sysconfig; print(sysconfig.get_path("stdlib"))')"
COPY --from=build /opt/gpu-healthcheck /opt/gpu-healthcheck
COPY --from=build /product/opt/gpu-healthcheck /opt/gpu-healthcheck
RUN ["/opt/gpu-healthcheck/bin/python3", "-I", "-c", "import pynvml, grpc, google.protobuf; from gpu_healthcheck.healthcheck.cluster import client; from gpu_healthcheck.agent.process import agent_program; from gpu_healthcheck.cli import __main__, diagnose; from gpu_healthcheck.sweeper import __main__; from gpu_healthcheck.quarantine import __main__; from gpu_healthcheck.evict import __main__"]
ENV PATH=/opt/gpu-healthcheck/bin:$PATH \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1
WORKDIR /tmp
ENTRYPOINT []
CMD ["gpu-healthcheck", "agent"]


# EFA's userspace libraries, from the distribution or from AWS; EFA_FROM selects one. Each is installed in its own stage on
# the final base, and only the files that fi_info, fi_pingpong and perftest's ib_write_bw need are copied from it.
FROM ${DCGM_IMAGE} AS efa-distribution
# hadolint ignore=DL3008
RUN find /usr >/before \
 && apt-get update \
 && apt-get install --yes --no-install-recommends libfabric-bin ibverbs-providers perftest

FROM ${DCGM_IMAGE} AS efa-aws
# Change both lines together; AWS publishes the checksum of each version:
# https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/efa-verify.html
ARG EFA_INSTALLER_VERSION=1.47.0
ARG EFA_INSTALLER_SHA256=2df4201e046833c7dc8160907bee7f52b76ff80ed147376a2d0ed8a0dd66b2db
ADD https://efa-installer.amazonaws.com/aws-efa-installer-${EFA_INSTALLER_VERSION}.tar.gz /installer/installer.tar.gz
WORKDIR /installer
RUN echo "${EFA_INSTALLER_SHA256}  installer.tar.gz" >checksum && sha256sum --check --strict checksum \
 && find /usr >/before \
 && tar -xzf installer.tar.gz --strip-components=1 \
 && apt-get update \
 && ./efa_installer.sh -y --skip-kmod --skip-limit-conf --no-verify
# Only perftest's programs: its package depends on the distribution's rdma-core, which the installer has replaced.
# hadolint ignore=DL3008
RUN apt-get update && apt-get install --yes --no-install-recommends libpci3 \
 && apt-get download perftest && dpkg --extract perftest_*.deb /

# hadolint ignore=DL3006
FROM efa-${EFA_FROM} AS efa
# The programs, the EFA and mlx5 drivers that libibverbs loads by name, and all their libraries that the base lacks.
ENV PATH=/opt/amazon/efa/bin:$PATH
RUN command -v fi_info >/wanted && command -v fi_pingpong >>/wanted && command -v ib_write_bw >>/wanted \
 && find /usr/lib -path '*/libibverbs/libefa*' -o -path '*/libibverbs/libmlx5*' >>/wanted \
 && xargs ldd </wanted >/linked && ! grep 'not found' /linked \
 && awk '$2 == "=>" && $3 ~ "^/" { sub("^/lib/", "/usr/lib/", $3); print $3 }' /linked >>/wanted \
 && ls /etc/libibverbs.d/efa.driver /etc/libibverbs.d/mlx5.driver >>/wanted \
 && sort --unique --output=/wanted /wanted \
 && grep --line-regexp --fixed-strings --invert-match --file=/before /wanted >/missing \
 && mkdir -p /efa/etc/ld.so.conf.d && echo /opt/amazon/efa/lib >/efa/etc/ld.so.conf.d/efa.conf \
 && tar --create --dereference --file=/missing.tar --files-from=/missing \
 && tar --extract --directory=/efa --file=/missing.tar


# The full image. DCGM's image is Ubuntu without Python; its labels and entrypoint are replaced.
FROM ${DCGM_IMAGE} AS full
ARG VERSION
ARG REVISION
ARG SOURCE
LABEL org.opencontainers.image.title="gpu-healthcheck" \
      org.opencontainers.image.description="GPU node health for Kubernetes: agent and Jobs, with DCGM and EFA's tools" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}" \
      org.opencontainers.image.source="${SOURCE}" \
      org.opencontainers.image.licenses="MIT-0"
ENV PYTHONNODEBUGRANGES=1
# The virtual environment expects its interpreter at the path of PYTHON_IMAGE. The distribution's bytecode depends on the times
# of its sources. A builder that sets all times invalidates it, and Python would compile the imports at every start.
# hadolint ignore=DL3008
RUN apt-get update \
 && apt-get install --yes --no-install-recommends python3 \
 && python3 -m compileall -qf --invalidation-mode unchecked-hash -x '/(site-packages|test|tests|idlelib|lib2to3)/' \
      "$(python3 -c 'import sysconfig; print(sysconfig.get_path("stdlib"))')" \
 && rm -rf /var/lib/apt/lists/* /var/cache/apt/* /var/cache/debconf/* /var/cache/ldconfig/* \
      /var/log/apt /var/log/dpkg.log /var/log/alternatives.log \
 && if [ ! -e /usr/local/bin/python3 ]; then ln -s /usr/bin/python3 /usr/local/bin/python3; fi
COPY --from=efa /efa/ /
RUN ldconfig && rm -rf /var/cache/ldconfig/* && PATH=$PATH:/opt/amazon/efa/bin fi_info --version
COPY --from=build /opt/gpu-healthcheck /opt/gpu-healthcheck
COPY --from=build /product/opt/gpu-healthcheck /opt/gpu-healthcheck
RUN ["/opt/gpu-healthcheck/bin/python3", "-I", "-c", "import pynvml, grpc, google.protobuf; from gpu_healthcheck.healthcheck.cluster import client; from gpu_healthcheck.agent.process import agent_program; from gpu_healthcheck.cli import __main__, diagnose; from gpu_healthcheck.sweeper import __main__; from gpu_healthcheck.quarantine import __main__; from gpu_healthcheck.evict import __main__"]
ENV PATH=/opt/gpu-healthcheck/bin:/opt/amazon/efa/bin:$PATH \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1
WORKDIR /tmp
ENTRYPOINT []
CMD ["gpu-healthcheck", "agent"]
