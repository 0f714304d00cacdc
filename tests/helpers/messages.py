"""Ways to send a message and receive another: each gives what was received, and what was sent."""

import mpixla


def by_sendrecv(message, template, source, dest, comm):
    return mpixla.sendrecv(message, template, source, dest, comm=comm), message


def by_one_request(message, template, source, dest, comm):
    return mpixla.wait(mpixla.isendrecv(message, template, source, dest, comm=comm)), message


def by_request(message, template, source, dest, comm):
    receiving = mpixla.irecv(template, source, comm=comm)
    sending = mpixla.isend(message, dest, comm=comm)
    return mpixla.wait(receiving), mpixla.wait(sending)


def by_recv(message, template, source, dest, comm):
    sending = mpixla.isend(message, dest, comm=comm)
    received = mpixla.recv(template, source, comm=comm)
    return received, mpixla.wait(sending)
